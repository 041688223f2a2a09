// The same list, as a C++17 compiler sees it.
#include "layout.c"
