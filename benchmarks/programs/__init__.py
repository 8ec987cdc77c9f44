"""Random training steps, planned and run: does the plan compute what the function computes?"""
