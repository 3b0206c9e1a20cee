#include "native/memory/slab_pool.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <variant>

#include "native/memory/slab_assembly.h"

namespace millpond::memory {
namespace {

// A version that wants less leaves more than half of a huge page empty. A thousand such versions
// would take 2 GB.
constexpr size_t kSmallVersionBytes = kSlabUnitBytes / 2;
constexpr size_t kSpareSlackShare = 16;
// The share of the bytes that are spared by which others may be left short. At rest the spares have
// the memory of the largest needs alone, so without it the smallest neighbour would keep a table of
// any size from being copied ahead. For each GB of a table a load of the neighbour's then faults in
// an eighth, which takes it 0.1 s at most. A delta that copies the table itself takes 2.5 s.
constexpr size_t kSpareShortShare = 8;
constexpr size_t kSpareSlackBytesMax = size_t{16} << 20;

void Add(size_t bytes, int64_t* count, int64_t* reserved_bytes) {
  ++*count;
  *reserved_bytes += static_cast<int64_t>(bytes);
}

}  // namespace

size_t SpareSlackOf(size_t target_bytes) {
  return std::min(RoundUp(target_bytes / kSpareSlackShare, kSlabUnitBytes), kSpareSlackBytesMax);
}

SlabPool::SlabPool(SlabPoolOptions options) : options_(options) {}

base::StatusOr<std::unique_ptr<Slab>> SlabPool::Take(const std::string& owner, size_t slab_bytes,
                                                     size_t wanted_bytes) {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [this] { return IsSettled(); });
  SlabAssembly assembly(slab_bytes, WantedBytes(owner, slab_bytes, wanted_bytes), &spares_);
  is_assembling_ = true;
  lock.unlock();
  base::StatusOr<std::unique_ptr<Slab>> slab = assembly.Perform();
  if (slab.ok()) slab.value()->SetSmallPagesAtStart(wanted_bytes < kSmallVersionBytes);
  lock.lock();
  is_assembling_ = false;
  for (SpareSlab& spare : assembly.TakeRest()) spares_.push_back(std::move(spare));
  if (slab.ok()) in_use_[slab.value().get()] = {owner, slab.value()->reserved_bytes()};
  WakeKeeper();
  lock.unlock();
  settled_.notify_all();
  return slab;
}

void SlabPool::GiveBack(std::unique_ptr<Slab> slab) {
  // A slab that cannot be unsealed cannot be used again. It is unmapped when this function returns.
  const bool is_usable = !slab->is_sealed() || slab->Unseal().ok();
  // Any version may be the next one.
  slab->SetSmallPagesAtStart(false);
  SpareSlab spare;
  spare.resident_bytes = RoundUp(slab->ResidentEnd(), kSlabUnitBytes);
  spare.goal_bytes = spare.resident_bytes;
  spare.slab = std::move(slab);
  const std::lock_guard lock(mutex_);
  in_use_.erase(spare.slab.get());
  if (is_usable) spares_.push_back(std::move(spare));
  WakeKeeper();
}

void SlabPool::Quarantine(std::unique_ptr<Slab> slab) {
  const std::lock_guard lock(mutex_);
  in_use_.erase(slab.get());
  slab->LeaveMapped();
  quarantined_.push_back(std::move(slab));
  WakeKeeper();
}

void SlabPool::Expect(const std::string& owner, const SlabNeed& need, int serving_slab_count) {
  const std::lock_guard lock(mutex_);
  expectations_[owner] = {need, serving_slab_count};
  WakeKeeper();
}

void SlabPool::Forget(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  expectations_.erase(owner);
  WakeKeeper();
}

bool SlabPool::Refill(size_t room_bytes) {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [this] { return !is_assembling_; });
  const size_t unfaulted_bytes = UnfaultedBytes();
  if (unfaulted_bytes > room_bytes) ForgoGoals(unfaulted_bytes);
  room_bytes -= std::min(room_bytes, UnfaultedBytes());
  size_t skipped_count = 0;
  while (MissingBytes(skipped_count) > room_bytes) ++skipped_count;
  permitted_bytes_ = MissingBytes(skipped_count);
  WakeKeeper();
  return skipped_count == 0;
}

bool SlabPool::CanSpare(size_t bytes, const std::set<std::string>& own) const {
  const std::lock_guard lock(mutex_);
  if (!IsSettled()) return false;
  size_t resident_bytes = 0;
  for (const SpareSlab& spare : spares_) resident_bytes += spare.resident_bytes;
  std::vector<size_t> needs;
  for (const auto& [owner, expectation] : expectations_) {
    if (own.count(owner) == 0) needs.push_back(expectation.SpareBytes());
  }
  std::sort(needs.rbegin(), needs.rend());
  needs.resize(std::min(needs.size(), static_cast<size_t>(options_.spare_slab_count)));
  const size_t others_bytes = std::accumulate(needs.begin(), needs.end(), size_t{0});
  return resident_bytes >= bytes + others_bytes - std::min(others_bytes, bytes / kSpareShortShare);
}

std::optional<int64_t> SlabPool::KeepStep() {
  std::optional<SlabStep> step;
  {
    const std::lock_guard lock(mutex_);
    if (is_assembling_) return options_.step_pause_ns;
    step = ChooseStep();
  }
  if (!step) return std::nullopt;
  std::visit([](auto& chosen) { chosen.Perform(); }, *step);
  {
    const std::lock_guard lock(mutex_);
    std::visit([this](auto& performed) { Record(performed); }, *step);
    FindSurplus();
  }
  settled_.notify_all();
  return options_.step_pause_ns;
}

void SlabPool::PinWith(std::shared_ptr<PagePinner> pinner) {
  const std::lock_guard lock(mutex_);
  pinner_ = std::move(pinner);
  WakeKeeper();
}

std::shared_ptr<PagePinner> SlabPool::pinner() const {
  const std::lock_guard lock(mutex_);
  return pinner_;
}

void SlabPool::NotifyOfWork(std::function<void()> on_work) {
  const std::lock_guard lock(mutex_);
  on_work_ = std::move(on_work);
}

SlabPoolStatistics SlabPool::Statistics() const {
  const std::lock_guard lock(mutex_);
  SlabPoolStatistics total;
  for (const auto& [slab, taken] : in_use_) {
    Add(taken.reserved_bytes, &total.in_use_count, &total.in_use_reserved_bytes);
  }
  int64_t resident_bytes = 0;
  for (const SpareSlab& spare : spares_) {
    Add(spare.slab->reserved_bytes(), &total.spare_count, &total.spare_reserved_bytes);
    resident_bytes += static_cast<int64_t>(spare.resident_bytes);
  }
  const auto target_bytes = static_cast<int64_t>(TargetBytes());
  if (is_in_surplus_) {
    total.surplus_resident_bytes = std::max<int64_t>(0, resident_bytes - target_bytes);
  }
  total.spare_resident_bytes = resident_bytes - total.surplus_resident_bytes;
  for (const auto& slab : quarantined_) {
    Add(slab->reserved_bytes(), &total.quarantined_count, &total.quarantined_reserved_bytes);
  }
  total.reservation_refusal = reservation_refusal_;
  return total;
}

// Returns the memory for the owner's next version, which is planned to want `wanted_bytes`. A plan
// is an upper bound that does not include what an init op allocates, so it is corrected by the
// difference of the last version.
size_t SlabPool::WantedBytes(const std::string& owner, size_t slab_bytes,
                             size_t wanted_bytes) const {
  const auto known = expectations_.find(owner);
  if (known == expectations_.end()) return 0;
  const SlabNeed& last = known->second.need;
  const size_t sum_bytes = wanted_bytes + last.used_bytes;
  const size_t used_bytes = sum_bytes - std::min(sum_bytes, last.wanted_bytes);
  return RoundUp(std::min(used_bytes, slab_bytes), kSlabUnitBytes);
}

// Returns the expectations of spare_slab_count owners with the largest needs, the largest first,
// after `skipped_count` owners with even larger needs.
std::vector<const SlabPool::Expectation*> SlabPool::LargestExpectations(
    size_t skipped_count) const {
  std::vector<const Expectation*> all;
  for (const auto& [owner, expectation] : expectations_) all.push_back(&expectation);
  std::stable_sort(all.begin(), all.end(), [](const Expectation* a, const Expectation* b) {
    return a->SpareBytes() > b->SpareBytes();
  });
  const size_t begin = std::min(skipped_count, all.size());
  const size_t count = std::min(all.size() - begin, static_cast<size_t>(options_.spare_slab_count));
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

size_t SlabPool::TargetBytes(size_t skipped_count) const {
  size_t bytes = 0;
  for (const Expectation* expectation : LargestExpectations(skipped_count)) {
    bytes += expectation->SpareBytes();
  }
  return bytes;
}

// Returns the memory that outgoing versions will give back, at most one for each owner.
size_t SlabPool::OwedBytes() const {
  std::map<std::string, int> in_use_counts;
  for (const auto& [slab, taken] : in_use_) ++in_use_counts[taken.owner];
  size_t bytes = 0;
  for (const auto& [owner, count] : in_use_counts) {
    const auto known = expectations_.find(owner);
    if (known == expectations_.end() || count <= known->second.serving_slab_count) continue;
    bytes += known->second.SpareBytes();
  }
  return bytes;
}

// Returns the spare memory at the end of all work that is begun.
size_t SlabPool::PlannedBytes() const {
  size_t bytes = reserving_bytes_;
  for (const SpareSlab& spare : spares_) bytes += spare.goal_bytes;
  return bytes;
}

// Returns the memory that is missing if the `skipped_count` largest needs are not met.
size_t SlabPool::MissingBytes(size_t skipped_count) const {
  const size_t target_bytes = TargetBytes(skipped_count);
  return target_bytes - std::min(target_bytes, PlannedBytes() + OwedBytes());
}

size_t SlabPool::UnfaultedBytes() const {
  size_t bytes = reserving_bytes_;
  for (const SpareSlab& spare : spares_) bytes += spare.goal_bytes - spare.resident_bytes;
  return bytes;
}

// Returns the bytes that are yet to be pinned for the next versions.
size_t SlabPool::UnpinnedBytes() const {
  size_t goal_bytes = 0;
  for (const Expectation* expectation : LargestExpectations()) {
    goal_bytes += expectation->PinnedBytes();
  }
  size_t pinned_bytes = 0;
  for (const SpareSlab& spare : spares_) pinned_bytes += spare.slab->pinned_bytes();
  return goal_bytes - std::min(goal_bytes, pinned_bytes);
}

bool SlabPool::IsSettled() const {
  return !is_assembling_ && std::none_of(spares_.begin(), spares_.end(),
                                         [](const auto& spare) { return spare.is_being_stepped; });
}

// Gives up pages that are not faulted in yet.
void SlabPool::ForgoGoals(size_t bytes_max) {
  const size_t reserving_bytes = std::min(reserving_bytes_, bytes_max);
  reserving_bytes_ -= reserving_bytes;
  bytes_max -= reserving_bytes;
  for (SpareSlab& spare : spares_) {
    const size_t bytes = std::min(spare.goal_bytes - spare.resident_bytes, bytes_max);
    spare.goal_bytes -= bytes;
    bytes_max -= bytes;
  }
}

void SlabPool::FindSurplus() {
  const size_t target_bytes = TargetBytes();
  const size_t slack_bytes = is_in_surplus_ ? 0 : SpareSlackOf(target_bytes);
  is_in_surplus_ = PlannedBytes() > target_bytes + slack_bytes;
}

std::optional<SlabStep> SlabPool::ChooseStep() {
  if (auto step = ChooseReturn()) return step;
  if (auto step = ChooseUnmapping()) return step;
  if (auto step = ChoosePreFault()) return step;
  if (auto step = ChooseReservation()) return step;
  return ChoosePinning();
}

std::optional<SlabStep> SlabPool::ChooseReturn() {
  if (!is_in_surplus_) return {};
  const size_t target_bytes = TargetBytes();
  ForgoGoals(PlannedBytes() - target_bytes);
  const size_t surplus_bytes = PlannedBytes() - target_bytes;
  if (surplus_bytes == 0) return {};
  SpareSlab* smallest = nullptr;
  for (SpareSlab& spare : spares_) {
    if (spare.resident_bytes == 0) continue;
    if (smallest == nullptr || spare.resident_bytes < smallest->resident_bytes) smallest = &spare;
  }
  smallest->is_being_stepped = true;
  return ReturnTail::Next(*smallest, std::min(surplus_bytes, options_.step_bytes));
}

std::optional<SlabStep> SlabPool::ChooseUnmapping() {
  const auto empty = std::find_if(spares_.begin(), spares_.end(),
                                  [](const SpareSlab& spare) { return spare.goal_bytes == 0; });
  if (empty == spares_.end()) return {};
  UnmapSlab step(std::move(empty->slab));
  spares_.erase(empty);
  return step;
}

std::optional<SlabStep> SlabPool::ChoosePreFault() {
  for (SpareSlab& spare : spares_) {
    const auto step = PreFaultSpare::Next(spare, options_.step_bytes);
    if (!step) continue;
    spare.is_being_stepped = true;
    return *step;
  }
  return {};
}

std::optional<SlabStep> SlabPool::ChoosePinning() {
  if (UnpinnedBytes() == 0) return {};
  for (SpareSlab& spare : spares_) {
    auto step = PinSpare::Next(spare, pinner_);
    if (!step) continue;
    spare.is_being_stepped = true;
    return std::move(*step);
  }
  return {};
}

// Makes a spare of the size of a version if so much is missing, because it can be used as it is. If
// only small versions are of that size, makes one spare of all that is missing: not many tiny ones.
std::optional<SlabStep> SlabPool::ChooseReservation() {
  const size_t bytes = std::min(permitted_bytes_, MissingBytes());
  if (bytes == 0) return {};
  size_t goal_bytes = bytes;
  size_t reserved_bytes = bytes;
  const size_t smallest_bytes = bytes / static_cast<size_t>(options_.spare_slab_count);
  for (const Expectation* expectation : LargestExpectations()) {
    const size_t spare_bytes = expectation->SpareBytes();
    if (spare_bytes == 0 || spare_bytes > bytes || spare_bytes < smallest_bytes) continue;
    goal_bytes = spare_bytes;
    reserved_bytes = std::max(spare_bytes, expectation->need.slab_bytes);
    break;
  }
  permitted_bytes_ -= goal_bytes;
  reserving_bytes_ = goal_bytes;
  return ReserveSpare(reserved_bytes);
}

// The slab is still in spares_: Take waits for the end of a step, and only the keeper unmaps slabs.
template <typename Step>
void SlabPool::Record(const Step& step) {
  const auto spare = std::find_if(spares_.begin(), spares_.end(), [&](const SpareSlab& candidate) {
    return candidate.slab.get() == step.slab();
  });
  spare->is_being_stepped = false;
  step.Record(&*spare);
}

void SlabPool::Record(ReserveSpare& step) {
  auto slab = step.TakeSlab();
  reservation_refusal_ = slab.status().message();
  SpareSlab spare;
  spare.goal_bytes = std::exchange(reserving_bytes_, 0);  // Refill may have lowered it.
  if (!slab.ok()) {
    permitted_bytes_ = 0;  // No new attempt until the next Refill.
    return;
  }
  spare.slab = std::move(slab.value());
  spares_.push_back(std::move(spare));
}

void SlabPool::WakeKeeper() {
  FindSurplus();
  if (on_work_) on_work_();
}

}  // namespace millpond::memory
