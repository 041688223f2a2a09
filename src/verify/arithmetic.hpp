// Unsigned arithmetic that notices when 64 bits do not suffice.
#pragma once

#include <cstdint>

namespace mkrt::verify {

// A number, or the knowledge that it does not fit.
class Checked {
 public:
  constexpr Checked(uint64_t value) : value_(value) {}  // NOLINT: numbers mix with Checked

  friend constexpr Checked operator+(Checked a, Checked b) {
    Checked sum(0);
    sum.fits_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) && a.fits_ && b.fits_;
    return sum;
  }
  friend constexpr Checked operator*(Checked a, Checked b) {
    Checked product(0);
    product.fits_ = !__builtin_mul_overflow(a.value_, b.value_, &product.value_) && a.fits_ && b.fits_;
    return product;
  }

  constexpr bool fits() const { return fits_; }
  // The format's limit of byte and element counts.
  constexpr bool fits_63_bits() const { return fits_ && value_ <= static_cast<uint64_t>(INT64_MAX); }
  constexpr uint64_t value() const { return value_; }  // meaningful if it fits

 private:
  uint64_t value_;
  bool fits_ = true;
};

}  // namespace mkrt::verify
