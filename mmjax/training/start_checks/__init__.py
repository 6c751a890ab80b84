"""Before the first step: do the devices compute rightly, and do all processes run the same?"""
