"""Everything that knows how Ray is started, stopped and queried. Only this room imports `ray`."""
