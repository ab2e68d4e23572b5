"""Games of two players: tic-tac-toe, Connect Four, Kuhn poker and a negotiation."""
