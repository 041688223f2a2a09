// The shared library has a C++ library of its own inside, invisible to others. That one sets 72 KB aside for exceptions
// that are thrown when memory is exhausted, and leaves them to the end of the process: a host that loads and unloads
// the shared library again and again would lose them each time.

// The C++ library's name, which none of its headers declares.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
namespace __gnu_cxx {
void __freeres();
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace {

// 101: the first priority that is not the system's own, so it runs after all other destructors: they may still throw.
[[gnu::destructor(101)]] void give_back_exception_memory() { __gnu_cxx::__freeres(); }

}  // namespace
