"""The console of a store that is divided into cells (docs/CELLS.md): the page of all cells, and the pages of each."""
