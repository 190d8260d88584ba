"""Drop-ins for other libraries: each module stands in for one of them."""
