"""The train command: learning from a folder of photographs, as fast as the device allows."""
