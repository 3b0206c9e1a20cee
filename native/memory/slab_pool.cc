#include "native/memory/slab_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

namespace millpond::memory {
namespace {

// The largest size of a spare, as a multiple of the expected size. A larger spare would keep too
// much memory from others.
constexpr size_t kLargestSpareRatio = 2;

void Add(size_t bytes, int64_t* count, int64_t* reserved_bytes) {
  ++*count;
  *reserved_bytes += static_cast<int64_t>(bytes);
}

SlabPoolStatistics Sum(SlabPoolStatistics total, const SlabPoolStatistics& more) {
  total.in_use_count += more.in_use_count;
  total.in_use_reserved_bytes += more.in_use_reserved_bytes;
  total.spare_count += more.spare_count;
  total.spare_reserved_bytes += more.spare_reserved_bytes;
  total.spare_resident_bytes += more.spare_resident_bytes;
  total.surplus_count += more.surplus_count;
  total.surplus_reserved_bytes += more.surplus_reserved_bytes;
  total.surplus_resident_bytes += more.surplus_resident_bytes;
  total.quarantined_count += more.quarantined_count;
  total.quarantined_reserved_bytes += more.quarantined_reserved_bytes;
  return total;
}

}  // namespace

SlabPool::SlabPool(SlabPoolOptions options) : options_(options) {}

base::StatusOr<std::unique_ptr<Slab>> SlabPool::Take(const std::string& owner, size_t bytes) {
  std::unique_lock lock(mutex_);
  IdleSlab* idle = FindIdle(owner, bytes);
  while (idle != nullptr && idle->is_being_stepped) {
    step_finished_.wait(lock);
    idle = FindIdle(owner, bytes);
  }
  std::unique_ptr<Slab> slab = idle == nullptr ? nullptr : Remove(idle);
  if (slab == nullptr) {
    lock.unlock();
    base::StatusOr<std::unique_ptr<Slab>> reserved = Slab::Reserve(bytes);
    if (!reserved.ok()) return reserved.status();
    slab = std::move(reserved.value());
    lock.lock();
  }
  in_use_[slab.get()] = {owner, slab->reserved_bytes()};
  WakeKeeper();
  return slab;
}

void SlabPool::GiveBack(const std::string& owner, std::unique_ptr<Slab> slab) {
  // A slab that cannot be unsealed cannot be used again. It is unmapped when this function returns.
  const bool is_usable = !slab->is_sealed() || slab->Unseal().ok();
  IdleSlab idle;
  idle.owner = owner;
  idle.resident_bytes = slab->ResidentBytes();
  idle.slab = std::move(slab);
  const std::lock_guard lock(mutex_);
  in_use_.erase(idle.slab.get());
  if (is_usable) idle_.push_back(std::move(idle));
  SortOutSpares(owner);
  WakeKeeper();
}

void SlabPool::Quarantine(std::unique_ptr<Slab> slab) {
  const std::lock_guard lock(mutex_);
  const auto taken = in_use_.extract(slab.get());
  slab->LeaveMapped();
  quarantined_.push_back({std::move(slab), taken.empty() ? "" : taken.mapped().owner});
  WakeKeeper();
}

void SlabPool::Expect(const std::string& owner, size_t reserved_bytes, size_t prefault_bytes,
                      int serving_slab_count) {
  const std::lock_guard lock(mutex_);
  expectations_[owner] = {RoundUp(reserved_bytes, kSlabUnitBytes), prefault_bytes,
                          serving_slab_count + options_.spare_slab_count};
  SortOutSpares(owner);
  WakeKeeper();
}

void SlabPool::Forget(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  expectations_.erase(owner);
  SortOutSpares(owner);
  WakeKeeper();
}

std::optional<int64_t> SlabPool::KeepStep() {
  std::optional<SlabStep> step;
  {
    const std::lock_guard lock(mutex_);
    step = ChooseStep();
  }
  if (!step) return std::nullopt;
  std::visit([](auto& chosen) { chosen.Perform(); }, *step);
  {
    const std::lock_guard lock(mutex_);
    std::visit([this](auto& performed) { Record(performed); }, *step);
  }
  step_finished_.notify_all();
  return options_.step_pause_ns;
}

void SlabPool::NotifyOfWork(std::function<void()> on_work) {
  const std::lock_guard lock(mutex_);
  on_work_ = std::move(on_work);
}

SlabPoolStatistics SlabPool::Statistics() const {
  SlabPoolStatistics total;
  for (const auto& [owner, statistics] : StatisticsByOwner()) total = Sum(total, statistics);
  return total;
}

std::map<std::string, SlabPoolStatistics> SlabPool::StatisticsByOwner() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, SlabPoolStatistics> by_owner;
  for (const auto& [slab, taken] : in_use_) {
    SlabPoolStatistics& its = by_owner[taken.owner];
    Add(taken.reserved_bytes, &its.in_use_count, &its.in_use_reserved_bytes);
  }
  for (const IdleSlab& idle : idle_) {
    SlabPoolStatistics& its = by_owner[idle.owner];
    const auto resident_bytes = static_cast<int64_t>(idle.resident_bytes);
    if (idle.is_surplus) {
      Add(idle.slab->reserved_bytes(), &its.surplus_count, &its.surplus_reserved_bytes);
      its.surplus_resident_bytes += resident_bytes;
    } else {
      Add(idle.slab->reserved_bytes(), &its.spare_count, &its.spare_reserved_bytes);
      its.spare_resident_bytes += resident_bytes;
    }
  }
  for (const Quarantined& quarantined : quarantined_) {
    SlabPoolStatistics& its = by_owner[quarantined.owner];
    Add(quarantined.slab->reserved_bytes(), &its.quarantined_count,
        &its.quarantined_reserved_bytes);
  }
  return by_owner;
}

// Returns the idle slab, spare or surplus, with the most resident memory among the bytes that are
// needed. Among equal slabs, returns the smallest.
IdleSlab* SlabPool::FindIdle(const std::string& owner, size_t bytes) {
  const auto worth = [bytes](const IdleSlab& idle) {
    return std::tuple(std::min(idle.resident_bytes, bytes), SIZE_MAX - idle.slab->reserved_bytes());
  };
  IdleSlab* best = nullptr;
  for (IdleSlab& idle : idle_) {
    const bool is_candidate = idle.owner == owner && idle.slab->reserved_bytes() >= bytes;
    if (is_candidate && (best == nullptr || worth(idle) > worth(*best))) best = &idle;
  }
  return best;
}

std::unique_ptr<Slab> SlabPool::Remove(const IdleSlab* idle) {
  const auto entry = idle_.begin() + (idle - idle_.data());
  std::unique_ptr<Slab> slab = std::move(entry->slab);
  idle_.erase(entry);
  return slab;
}

// Keeps the owner's best spares, at most spare_slab_count; the others become surplus.
void SlabPool::SortOutSpares(const std::string& owner) {
  const auto expectation = expectations_.find(owner);
  const size_t expected_bytes =
      expectation == expectations_.end() ? 0 : expectation->second.reserved_bytes;
  std::vector<IdleSlab*> fitting;
  for (IdleSlab& idle : idle_) {
    if (idle.is_surplus || idle.owner != owner) continue;
    const size_t reserved_bytes = idle.slab->reserved_bytes();
    const bool fits =
        reserved_bytes >= expected_bytes && reserved_bytes / kLargestSpareRatio <= expected_bytes;
    idle.is_surplus = true;
    if (fits && expected_bytes > 0) fitting.push_back(&idle);
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const IdleSlab* a, const IdleSlab* b) {
    return a->resident_bytes > b->resident_bytes;
  });
  const size_t kept_count =
      std::min(fitting.size(), static_cast<size_t>(options_.spare_slab_count));
  for (size_t i = 0; i < kept_count; ++i) fitting[i]->is_surplus = false;
}

int SlabPool::InUseCount(const std::string& owner) const {
  return static_cast<int>(std::count_if(in_use_.begin(), in_use_.end(), [&](const auto& entry) {
    return entry.second.owner == owner;
  }));
}

int SlabPool::SpareCount(const std::string& owner) const {
  return static_cast<int>(std::count_if(idle_.begin(), idle_.end(), [&](const IdleSlab& idle) {
    return !idle.is_surplus && idle.owner == owner;
  }));
}

std::optional<SlabStep> SlabPool::ChooseStep() {
  if (auto step = ChooseForSurplus()) return step;
  if (auto step = ChooseForSpares<ReturnUnneeded>()) return step;
  if (auto step = ChooseForSpares<PreFaultSpare>()) return step;
  return ChooseReservation();
}

std::optional<SlabStep> SlabPool::ChooseForSurplus() {
  const auto surplus = std::find_if(idle_.begin(), idle_.end(),
                                    [](const IdleSlab& idle) { return idle.is_surplus; });
  if (surplus == idle_.end()) return {};
  const auto step = ReturnSurplus::Next(*surplus, options_.step_bytes);
  if (!step) return UnmapSurplus(Remove(&*surplus));
  surplus->is_being_stepped = true;
  return *step;
}

// Returns the step of the first spare that needs a step of this kind.
template <typename Step>
std::optional<SlabStep> SlabPool::ChooseForSpares() {
  for (IdleSlab& idle : idle_) {
    const auto expectation = expectations_.find(idle.owner);
    if (idle.is_surplus || expectation == expectations_.end()) continue;
    const auto step = Step::Next(idle, expectation->second.prefault_bytes, options_.step_bytes);
    if (!step) continue;
    idle.is_being_stepped = true;
    return *step;
  }
  return {};
}

std::optional<SlabStep> SlabPool::ChooseReservation() const {
  if (has_reservation_failed_) return {};
  for (const auto& [owner, expectation] : expectations_) {
    const int spare_count = SpareCount(owner);
    const bool is_short = spare_count < options_.spare_slab_count &&
                          spare_count + InUseCount(owner) < expectation.slab_count;
    if (is_short) return ReserveSpare(owner, expectation.reserved_bytes);
  }
  return {};
}

// The slab is still in idle_: Take waits for the end of a step, and only the keeper unmaps slabs.
template <typename Step>
void SlabPool::Record(const Step& step) {
  const auto idle = std::find_if(idle_.begin(), idle_.end(), [&](const IdleSlab& candidate) {
    return candidate.slab.get() == step.slab();
  });
  idle->is_being_stepped = false;
  step.Record(&*idle);
}

void SlabPool::Record(ReserveSpare& step) {
  IdleSlab idle;
  idle.slab = step.TakeSlab();
  if (idle.slab == nullptr) {
    has_reservation_failed_ = true;
    return;
  }
  idle.owner = step.owner();
  idle_.push_back(std::move(idle));
  SortOutSpares(step.owner());  // The expectation may have changed in between.
}

void SlabPool::WakeKeeper() {
  has_reservation_failed_ = false;
  if (on_work_) on_work_();
}

}  // namespace millpond::memory
