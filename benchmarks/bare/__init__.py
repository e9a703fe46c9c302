"""Bare programs: the updates of noterl's agents in the frameworks' own terms, without logs, checks or reports."""
