"""Everything two packages of the suite share. Imports no task package."""
