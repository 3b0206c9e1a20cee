#include "native/memory/slab_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace millpond::memory {
namespace {

// The largest size of a spare, as a multiple of the expected size. A larger spare would keep too
// much memory from others.
constexpr size_t kLargestSpareRatio = 2;
// The memory that a spare may keep beyond its expected need: the next version rarely has exactly
// the size of the last version.
constexpr size_t kSpareSlackBytes = size_t{16} << 20;

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
  Idle* spare = FindSpare(owner, bytes);
  while (spare != nullptr && spare->is_in_hand) {
    step_finished_.wait(lock);
    spare = FindSpare(owner, bytes);
  }
  std::unique_ptr<Slab> slab = spare == nullptr ? nullptr : Remove(spare);
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
  Idle idle;
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
  Step step;
  {
    const std::lock_guard lock(mutex_);
    step = ChooseStep();
  }
  if (step.work == Work::kNone) return std::nullopt;
  Perform(step);
  {
    const std::lock_guard lock(mutex_);
    Finish(std::move(step));
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
  for (const Idle& idle : idle_) {
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

// Returns the idle slab with the most memory behind the bytes that are needed; of equal slabs, the
// smallest. A surplus on its way back qualifies too: on a busy machine the keeper may not reach it
// for long.
SlabPool::Idle* SlabPool::FindSpare(const std::string& owner, size_t bytes) {
  const auto worth = [bytes](const Idle& idle) {
    return std::tuple(std::min(idle.resident_bytes, bytes), SIZE_MAX - idle.slab->reserved_bytes());
  };
  Idle* best = nullptr;
  for (Idle& idle : idle_) {
    const bool is_candidate = idle.owner == owner && idle.slab->reserved_bytes() >= bytes;
    if (is_candidate && (best == nullptr || worth(idle) > worth(*best))) best = &idle;
  }
  return best;
}

std::unique_ptr<Slab> SlabPool::Remove(const Idle* idle) {
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
  std::vector<Idle*> fitting;
  for (Idle& idle : idle_) {
    if (idle.is_surplus || idle.owner != owner) continue;
    const size_t reserved_bytes = idle.slab->reserved_bytes();
    const bool fits =
        reserved_bytes >= expected_bytes && reserved_bytes / kLargestSpareRatio <= expected_bytes;
    idle.is_surplus = true;
    if (fits && expected_bytes > 0) fitting.push_back(&idle);
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const Idle* a, const Idle* b) {
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
  return static_cast<int>(std::count_if(idle_.begin(), idle_.end(), [&](const Idle& idle) {
    return !idle.is_surplus && idle.owner == owner;
  }));
}

SlabPool::Step SlabPool::ChooseStep() {
  Step step = ChooseReturn();
  if (step.work == Work::kNone) step = ChooseUnneeded();
  if (step.work == Work::kNone) step = ChoosePreFault();
  if (step.work == Work::kNone) step = ChooseReservation();
  return step;
}

SlabPool::Step SlabPool::ChooseReturn() {
  const auto surplus =
      std::find_if(idle_.begin(), idle_.end(), [](const Idle& idle) { return idle.is_surplus; });
  if (surplus == idle_.end()) return {};
  Step step;
  if (surplus->resident_bytes == 0 || surplus->returned_bytes >= surplus->slab->reserved_bytes()) {
    step.work = Work::kUnmap;
    step.owned = Remove(&*surplus);
    return step;
  }
  step.work = Work::kReturn;
  step.slab = surplus->slab.get();
  step.offset = surplus->returned_bytes;
  step.bytes = options_.step_bytes;
  surplus->is_in_hand = true;
  return step;
}

// Chooses to return the part of a spare that the next version does not need. A larger version has
// left it resident.
SlabPool::Step SlabPool::ChooseUnneeded() {
  for (Idle& idle : idle_) {
    const auto expectation = expectations_.find(idle.owner);
    if (idle.is_surplus || expectation == expectations_.end()) continue;
    const size_t needed_bytes = RoundUp(expectation->second.prefault_bytes, kSlabUnitBytes);
    const size_t begin = std::max(needed_bytes, idle.unneeded_end);
    const bool has_begun = idle.unneeded_end > 0;
    const bool is_small = idle.resident_bytes <= needed_bytes + kSpareSlackBytes;
    if ((is_small && !has_begun) || begin >= idle.slab->reserved_bytes()) continue;
    Step step;
    step.work = Work::kReturnUnneeded;
    step.slab = idle.slab.get();
    step.offset = begin;
    step.kept_bytes = needed_bytes;
    step.bytes = options_.step_bytes;
    idle.is_in_hand = true;
    return step;
  }
  return {};
}

SlabPool::Step SlabPool::ChoosePreFault() {
  for (Idle& idle : idle_) {
    const auto expectation = expectations_.find(idle.owner);
    if (idle.is_surplus || expectation == expectations_.end()) continue;
    const size_t wanted_bytes =
        std::min(expectation->second.prefault_bytes, idle.slab->reserved_bytes());
    // The slab of a version is resident from its low end, as far as the version used it.
    const bool is_resident = idle.prefaulted_bytes == 0 && idle.resident_bytes >= wanted_bytes;
    if (is_resident || idle.prefaulted_bytes >= wanted_bytes) continue;
    Step step;
    step.work = Work::kPreFault;
    step.slab = idle.slab.get();
    step.offset = idle.prefaulted_bytes;
    step.bytes = std::min(options_.step_bytes, wanted_bytes - idle.prefaulted_bytes);
    idle.is_in_hand = true;
    return step;
  }
  return {};
}

SlabPool::Step SlabPool::ChooseReservation() const {
  if (has_reservation_failed_) return {};
  for (const auto& [owner, expectation] : expectations_) {
    const int spare_count = SpareCount(owner);
    const bool is_short = spare_count < options_.spare_slab_count &&
                          spare_count + InUseCount(owner) < expectation.slab_count;
    if (!is_short) continue;
    Step step;
    step.work = Work::kReserve;
    step.owner = owner;
    step.bytes = expectation.reserved_bytes;
    return step;
  }
  return {};
}

// Touches memory, which may take long, so it runs without the mutex.
void SlabPool::Perform(Step& step) const {
  switch (step.work) {
    case Work::kNone:
      return;
    case Work::kPreFault:
      return step.slab->PreFault(step.offset, step.bytes);
    case Work::kReturn:
    case Work::kReturnUnneeded:
      return step.slab->ReturnPages(step.offset, step.bytes);
    case Work::kUnmap:
      return step.owned.reset();
    case Work::kReserve:
      base::StatusOr<std::unique_ptr<Slab>> reserved = Slab::Reserve(step.bytes);
      if (reserved.ok()) step.owned = std::move(reserved.value());
  }
}

void SlabPool::Finish(Step step) {
  if (step.work == Work::kReserve) return AddReserved(std::move(step));
  const auto idle = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& candidate) {
    return candidate.slab.get() == step.slab;
  });
  if (idle == idle_.end()) return;  // The slab was unmapped.
  idle->is_in_hand = false;
  const size_t end = std::min(step.offset + step.bytes, idle->slab->reserved_bytes());
  if (step.work == Work::kPreFault) {
    idle->prefaulted_bytes = end;
    idle->unneeded_end = 0;
    idle->resident_bytes = std::max(idle->resident_bytes, end);
    return;
  }
  if (step.work == Work::kReturn) {
    idle->returned_bytes = end;
  } else {
    idle->unneeded_end = end;
    idle->prefaulted_bytes = std::min(idle->prefaulted_bytes, step.offset);
  }
  idle->resident_bytes =
      std::min(idle->resident_bytes, step.kept_bytes + idle->slab->reserved_bytes() - end);
}

void SlabPool::AddReserved(Step step) {
  if (step.owned == nullptr) {
    has_reservation_failed_ = true;
    return;
  }
  Idle idle;
  idle.slab = std::move(step.owned);
  idle.owner = step.owner;
  idle_.push_back(std::move(idle));
  SortOutSpares(step.owner);  // The expectation may have changed in between.
}

void SlabPool::WakeKeeper() {
  has_reservation_failed_ = false;
  if (on_work_) on_work_();
}

}  // namespace millpond::memory
