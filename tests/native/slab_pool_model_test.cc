// Holds the slab pool to its promises over random sequences of loads, swaps, failed loads, leaks
// and removed owners, with the keeper at work at random moments. Pinned pages stay as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/memory/slab.h"
#include "native/memory/slab_pool.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;
// So much that one slab that is not unmapped shows in the addresses of the process.
constexpr size_t kModelHeadroomBytes = 1024 * kMiB;
constexpr int kOwnerCount = 5;
constexpr int kUnevenOwnerCount = 3;
#ifdef MILLPOND_SANITIZE
// A sanitizer watches each byte that is touched.
constexpr int kActionCount = 15;
constexpr int kSequenceCount = 8;
#else
constexpr int kActionCount = 120;
constexpr int kSequenceCount = 16;
#endif
// Many spares of a few bytes would each cost a slab. These sequences leave 8 at most.
constexpr int kSpareCountMax = 2 * kOwnerCount;
// The keeper is done after far fewer steps, even if it makes and returns the memory of all owners.
constexpr int kStepCountMax = 10'000;

size_t MappedBytes() {
  size_t page_count = 0;
  std::ifstream("/proc/self/statm") >> page_count;
  return page_count * kPageBytes;
}

struct Version {
  std::unique_ptr<Slab> slab;
  size_t bytes = 0;
};

// The versions of one owner: the one that it serves, and during a swap the next one.
struct Owner {
  Version serving;
  Version coming;
  size_t expected_bytes = 0;  // 0: none
};

class PoolModel {
 public:
  // If `is_uneven`, the first owner's versions are large and of any size, and those of the others
  // are tiny or have no parameters.
  PoolModel(int spare_count, bool is_uneven, uint32_t seed)
      : spare_count_(spare_count),
        is_uneven_(is_uneven),
        rng_(seed),
        owners_(is_uneven ? kUnevenOwnerCount : kOwnerCount) {
    SlabPoolOptions options;
    options.spare_slab_count = spare_count;
    pool_ = std::make_unique<SlabPool>(options);
    if (Random(4) == 0) pinner_->bytes_max = Random(100) * kMiB;
    pool_->PinWith(pinner_);
  }

  void TakeAction() {
    Owner& owner = owners_[Random(static_cast<int>(owners_.size()))];
    const std::string name = std::to_string(&owner - owners_.data());
    SCOPED_TRACE("owner " + name);
    switch (Random(9)) {
      case 0:
      case 1:
      case 2:
        return BeginLoad(name, &owner);
      case 3:
      case 4:
      case 5:
        return EndSwap(name, &owner);
      case 6:
        return FailLoad(&owner);
      case 7:
        return Random(8) == 0 ? Remove(name, &owner) : RunKeeper(Random(20));
      default:
        return Rest();
    }
  }

  // Ends all swaps and all owners. Nothing may be left but what has leaked.
  void End() {
    for (size_t i = 0; i < owners_.size(); ++i) {
      EndSwap(std::to_string(i), &owners_[i]);
      Remove(std::to_string(i), &owners_[i]);
    }
    RunKeeperUntilDone();
    const SlabPoolStatistics statistics = pool_->Statistics();
    EXPECT_EQ(statistics.in_use_count, 0);
    EXPECT_EQ(statistics.spare_count, 0);
    EXPECT_EQ(statistics.quarantined_count, leaked_count_);
    pool_.reset();
    EXPECT_EQ(pinner_->bytes(), 0) << "memory that is given back is pinned";
  }
  void CheckPins() const { pinner_->ExpectAllResident(); }
  int64_t leaked_count() const { return leaked_count_; }

 private:
  int Random(int end) { return static_cast<int>(rng_() % static_cast<uint32_t>(end)); }
  size_t RandomSize() {
    // Most versions have the size of one of a few classes, from 2 to 64 MiB.
    return (size_t{2} << Random(6)) * kMiB + (Random(4) == 0 ? 2 * kMiB : 0);
  }
  size_t RandomSize(const Owner& owner) {
    if (!is_uneven_) return RandomSize();
    return &owner == &owners_[0] ? (32 + 2 * Random(48)) * kMiB : 2 * Random(2) * kMiB;
  }
  int ComingCount() const {
    return static_cast<int>(std::count_if(owners_.begin(), owners_.end(), [](const Owner& owner) {
      return owner.coming.slab != nullptr;
    }));
  }
  void RunKeeper(int step_count) {
    while (step_count-- > 0 && pool_->KeepStep()) {
    }
  }

  void RunKeeperUntilDone() {
    RunKeeper(kStepCountMax);
    EXPECT_FALSE(pool_->KeepStep()) << "the keeper finds no end";
  }

  // The promise: the version finds its memory, if the pool was at rest once since anything was
  // missing, and at most spare_count owners are in a swap.
  void BeginLoad(const std::string& name, Owner* owner) {
    if (owner->coming.slab != nullptr) return;
    const bool is_first = owner->serving.slab == nullptr;
    const size_t last_bytes = is_first ? 0 : owner->serving.bytes;
    const size_t bytes = last_bytes > 0 && Random(8) > 0 ? last_bytes : RandomSize(*owner);
    Version version{std::move(pool_->Take(name, bytes + kModelHeadroomBytes, bytes).value()),
                    bytes};
    EXPECT_GE(version.slab->reserved_bytes(), bytes + kModelHeadroomBytes);
    EXPECT_LE(version.slab->ResidentBytes(), bytes) << "more than the version needs";
    owner->coming = std::move(version);
    if (is_first || bytes > owner->expected_bytes) is_complete_ = false;
    if (!is_complete_ || ComingCount() > spare_count_) return;
    EXPECT_EQ(owner->coming.slab->ResidentBytes(), bytes) << "fresh pages in a swap";
  }

  void EndSwap(const std::string& name, Owner* owner) {
    if (owner->coming.slab == nullptr) return;
    std::memset(owner->coming.slab->start(), 1, owner->coming.bytes);
    const size_t bytes = owner->coming.bytes;
    const bool is_uploaded = Random(4) > 0;
    while (is_uploaded && owner->coming.slab->PinNext(bytes, pinner_)) {
    }
    pool_->Expect(name, {bytes + kModelHeadroomBytes, bytes, bytes,
                         is_uploaded ? owner->coming.slab->pinned_bytes() : 0});
    pool_->Refill(SIZE_MAX);
    owner->expected_bytes = bytes;
    RunKeeper(Random(10));
    std::swap(owner->serving, owner->coming);
    Unload(&owner->coming);
    pool_->Refill(SIZE_MAX);
  }

  void FailLoad(Owner* owner) {
    Unload(&owner->coming);
    pool_->Refill(SIZE_MAX);
  }

  void Unload(Version* version) {
    if (version->slab == nullptr) return;
    const bool has_leaked = Random(30) == 0;
    if (has_leaked) {
      ++leaked_count_;
      is_complete_ = false;
      pool_->Quarantine(std::move(version->slab));
    } else {
      if (Random(4) == 0) {
        EXPECT_TRUE(version->slab->Seal().ok());
      }
      pool_->GiveBack(std::move(version->slab));
    }
    *version = {};
  }

  void Remove(const std::string& name, Owner* owner) {
    pool_->Forget(name);
    owner->expected_bytes = 0;
    FailLoad(owner);
    Unload(&owner->serving);
    is_complete_ = false;  // Another owner may be among the largest now.
    pool_->Refill(SIZE_MAX);
  }

  // Ends all swaps, and waits for the keeper. The pool then has its target, and little more.
  void Rest() {
    for (size_t i = 0; i < owners_.size(); ++i) EndSwap(std::to_string(i), &owners_[i]);
    RunKeeperUntilDone();
    std::vector<size_t> needs;
    for (const Owner& owner : owners_) {
      needs.push_back(owner.expected_bytes);
      if (owner.serving.slab == nullptr) continue;
      EXPECT_EQ(owner.serving.slab->ResidentBytes(), owner.serving.bytes);
    }
    std::sort(needs.begin(), needs.end(), std::greater<>());
    size_t target_bytes = 0;
    for (int i = 0; i < spare_count_; ++i) target_bytes += needs[i];
    const SlabPoolStatistics statistics = pool_->Statistics();
    EXPECT_GE(statistics.spare_resident_bytes, target_bytes);
    EXPECT_LE(statistics.spare_resident_bytes, target_bytes + SpareSlackOf(target_bytes));
    EXPECT_EQ(statistics.surplus_resident_bytes, 0);
    EXPECT_LE(statistics.spare_count, kSpareCountMax);
    is_complete_ = true;
  }

  const int spare_count_;
  const bool is_uneven_;
  std::mt19937 rng_;
  const std::shared_ptr<testing::FakePagePinner> pinner_ =
      std::make_shared<testing::FakePagePinner>();
  std::unique_ptr<SlabPool> pool_;
  std::vector<Owner> owners_;
  int64_t leaked_count_ = 0;
  bool is_complete_ = false;  // The spares have, or are owed, their target.
};

TEST(SlabPoolModel, KeepsItsPromisesOverRandomSequences) {
  const size_t mapped_bytes = MappedBytes();
  int64_t leaked_count = 0;
  for (int sequence = 0; sequence < kSequenceCount; ++sequence) {
    SCOPED_TRACE("sequence " + std::to_string(sequence));
    PoolModel model(/*spare_count=*/sequence % 4, /*is_uneven=*/sequence / 4 % 2 == 1,
                    static_cast<uint32_t>(sequence));
    for (int action = 0; action < kActionCount && !::testing::Test::HasFailure(); ++action) {
      SCOPED_TRACE("action " + std::to_string(action));
      model.TakeAction();
      model.CheckPins();
    }
    model.End();
    leaked_count += model.leaked_count();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_LT(MappedBytes(), mapped_bytes + leaked_count * (kModelHeadroomBytes + 128 * kMiB) +
                               kModelHeadroomBytes / 2);
}

}  // namespace
}  // namespace millpond::memory
