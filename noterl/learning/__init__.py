"""Learning: what happens between stored transitions and updated weights."""
