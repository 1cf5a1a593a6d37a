"""The eval command: how well a decoder paints photographs, in figures and as a picture."""
