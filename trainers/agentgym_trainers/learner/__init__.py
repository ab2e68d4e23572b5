"""The learner: forward and backward passes, optimizer steps, the critic, sharding, supervised warm-up."""
