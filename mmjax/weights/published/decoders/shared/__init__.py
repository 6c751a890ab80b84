"""What name rules and configurations of several decoders have in common."""
