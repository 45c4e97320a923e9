"""The only room that imports Ray, or knows how it is started and asked."""
