"""Video clips: their files, which frames of them are read, and writing of small ones."""
