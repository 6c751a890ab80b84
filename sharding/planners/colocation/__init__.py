"""Plans with pipeline replicas of encoders and generators beside a backbone: layouts of both, and the plans of them."""
