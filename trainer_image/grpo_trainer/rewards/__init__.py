"""Rewards: builtin rules, and a pool of processes that call them and the user's functions (`grpo_api.rewards`)."""
