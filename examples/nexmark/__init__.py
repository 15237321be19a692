"""An auction house as in the Nexmark benchmark: persons register, open auctions, and bid."""
