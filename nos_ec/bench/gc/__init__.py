"""`nos-ec simulate gc`: how much GC copies, and how much space stays dead, without storing anything."""
