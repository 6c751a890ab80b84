"""Exchange hops: activations between two phases whose rows hold different items."""
