"""Result records and the page that shows them."""
