"""Games of two players: chess, tic-tac-toe, Connect Four, Kuhn poker and a negotiation."""
