#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "native/memory/page_pins.h"
#include "native/memory/slab.h"

namespace millpond::testing {

// Keeps the ranges that are pinned, and expects that none overlaps another, and that all are mapped
// and have memory until they are unpinned.
class FakePagePinner final : public memory::PagePinner {
 public:
  ~FakePagePinner() override { EXPECT_TRUE(pinned_.empty()); }

  bool Pin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) override {
    if (bytes_ + bytes > bytes_max) return false;
    // Pinning makes pages resident.
    for (size_t page = 0; page < bytes; page += memory::kPageBytes) {
      auto* const first = reinterpret_cast<volatile unsigned char*>(start + page);
      *first = *first;
    }
    const auto next = pinned_.lower_bound(start);
    EXPECT_TRUE(next == pinned_.end() || start + bytes <= next->first);
    EXPECT_TRUE(next == pinned_.begin() ||
                std::prev(next)->first + std::prev(next)->second <= start);
    pinned_[start] = bytes;
    bytes_ += bytes;
    calls.push_back(bytes);
    if (!pins) late_[start] = std::move(kept);
    return pins;
  }

  bool Unpin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) override {
    EXPECT_EQ(pinned_.count(start), 1);
    EXPECT_EQ(pinned_[start], bytes);
    EXPECT_TRUE(IsResident(start, bytes)) << "unpinned too late";
    if (!unpins) {
      late_[start] = std::move(kept);
      return false;
    }
    pinned_.erase(start);
    bytes_ -= bytes;
    return true;
  }

  // Unpins what it was late to unpin or to pin.
  void UnpinLate() {
    for (const auto& [start, kept] : late_) {
      EXPECT_TRUE(IsResident(start, pinned_[start])) << "unmapped too early";
      bytes_ -= pinned_[start];
      pinned_.erase(start);
    }
    late_.clear();
  }

  // Expects that no page was given back or moved while it was pinned.
  void ExpectAllResident() const {
    for (const auto& [start, bytes] : pinned_) EXPECT_TRUE(IsResident(start, bytes));
  }
  size_t bytes() const { return bytes_; }

  size_t bytes_max = SIZE_MAX;  // refuses more
  bool unpins = true;           // false: as a driver that hangs
  bool pins = true;             // false: pins all the same, but later than it is waited for
  std::vector<size_t> calls;    // the sizes that were pinned

 private:
  static bool IsResident(std::byte* start, size_t bytes) {
    std::vector<unsigned char> pages(bytes / memory::kPageBytes);
    return mincore(start, bytes, pages.data()) == 0 &&
           std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  }

  std::map<std::byte*, size_t> pinned_;
  std::map<std::byte*, std::shared_ptr<const void>> late_;
  size_t bytes_ = 0;
};

}  // namespace millpond::testing
