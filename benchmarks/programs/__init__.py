"""Random training steps, planned and run: does the plan compute the same as the function?"""
