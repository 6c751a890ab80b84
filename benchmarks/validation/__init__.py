"""Published text-only training runs, simulated at their settings: how far the analytic costs are from measurements."""
