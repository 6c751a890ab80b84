"""Steps that were measured: their timelines, mean seconds and documents, and orders computed anew from them."""
