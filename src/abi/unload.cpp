// The shared library has a C++ library of its own inside, invisible to others. That one sets 72 KB aside for exceptions
// that are thrown when memory is exhausted, and leaves them to the end of the process: a host that loads and unloads
// the shared library again and again would lose them each time.

namespace __gnu_cxx {  // NOLINT(bugprone-reserved-identifier): the C++ library's name,
void __freeres();      // NOLINT(bugprone-reserved-identifier): declared in none of its headers
}  // namespace __gnu_cxx

namespace {

// 101: the first priority that is not the system's own, so it runs after all other destructors: they may still throw.
[[gnu::destructor(101)]] void give_back_exception_memory() { __gnu_cxx::__freeres(); }

}  // namespace
