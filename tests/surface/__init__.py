"""What people and programs outside call, followed as an outsider does: commands, Python, what they print and return."""
