"""Records of what the user asks for and what was measured. Every later step reads them."""
