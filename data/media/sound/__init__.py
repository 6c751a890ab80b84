"""Sound: decoding of audio files, mel spectrograms, speech synthesis for data sets of our own."""
