"""`nos-ec simulate gc` simulates how much GC copies and how much space stays dead, without storing anything."""
