"""Schedulers and clouds: what they tell a job, and the files that start one there."""
