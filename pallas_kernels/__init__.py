"""Operations that overlap communication with arithmetic; one folder for each, with its XLA reference."""
