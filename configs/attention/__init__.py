"""Options of attention: windows, kinds within one model, latent attention, and rotary positions."""
