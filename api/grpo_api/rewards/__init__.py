"""Running a user's reward functions: signatures, calls, results, and the process that they run in.

The trainer's reward pool and `grpoctl reward try` both use it, so that what a trial says is what training does. It
imports the standard library only, and never torch: its processes start fast, and under any Python 3.11 or later.
"""
