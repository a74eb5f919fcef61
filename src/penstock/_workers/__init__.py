"""Whoever runs tasks claimed from a slot ring: started, watched and stopped here. Knows no dataset and no plan."""
