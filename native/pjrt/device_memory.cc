#include "native/pjrt/device_memory.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace millpond::pjrt {
namespace {

// The bytes of copies that are kept, and of the largest run of their versions.
struct Need {
  CopyBytes copies;
  int64_t run = 0;

  void Add(const CopyState& copy) {
    copies.Add(copy.bytes, copy.parts);
    run = std::max(run, copy.run_bytes);
  }
  int64_t total() const { return copies.bytes() + run; }
};

// True if the newcomer, which is the last of `copies`, fits beside the others that are kept.
bool Fits(const MemoryBounds& bounds, const std::vector<CopyState>& copies,
          const std::vector<bool>& is_dropped) {
  Need all;
  Need own;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (is_dropped[i]) continue;
    all.Add(copies[i]);
    if (copies[i].model == copies.back().model) own.Add(copies[i]);
  }
  return all.total() <= bounds.limit_bytes && own.total() <= bounds.QuotaOf(copies.back().model);
}

base::Status NoRoom(const char* what, int64_t bytes, int64_t run_bytes) {
  return {base::Code::kResourceExhausted,
          std::string(what) + " take " + std::to_string(bytes) + " bytes and a run " +
              std::to_string(run_bytes) +
              ", and the accelerator has not so much left for the model: serve fewer models there, "
              "or raise accelerator_memory_bytes or --accelerator_memory_fraction"};
}

}  // namespace

std::optional<std::vector<size_t>> ChooseDropped(const MemoryBounds& bounds,
                                                 const std::vector<CopyState>& copies) {
  std::vector<size_t> idle;
  for (size_t i = 0; i + 1 < copies.size(); ++i) {
    if (copies[i].is_idle) idle.push_back(i);
  }
  std::stable_sort(idle.begin(), idle.end(), [&](size_t a, size_t b) {
    return copies[a].last_use_ns < copies[b].last_use_ns;
  });
  std::vector<bool> is_dropped(copies.size(), false);
  size_t dropped_count = 0;
  while (!Fits(bounds, copies, is_dropped)) {
    if (dropped_count == idle.size()) return std::nullopt;
    is_dropped[idle[dropped_count++]] = true;
  }
  // A later and larger one may have made an earlier one needless.
  while (dropped_count-- > 0) {
    is_dropped[idle[dropped_count]] = false;
    if (!Fits(bounds, copies, is_dropped)) is_dropped[idle[dropped_count]] = true;
  }
  std::vector<size_t> dropped;
  std::copy_if(idle.begin(), idle.end(), std::back_inserter(dropped),
               [&](size_t i) { return is_dropped[i]; });
  return dropped;
}

void DeviceMemory::SetLimit(int64_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  bounds_.limit_bytes = limit_bytes;
}

void DeviceMemory::SetQuota(const std::string& model, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > 0) {
    bounds_.quotas[model] = bytes;
  } else {
    bounds_.quotas.erase(model);
  }
}

// The states of all copies, in their order.
std::vector<CopyState> DeviceMemory::States(int64_t now_ns) const {
  std::vector<CopyState> states;
  for (const Copy& copy : copies_) {
    CopyState& state = states.emplace_back();
    state.model = copy.model;
    state.bytes = copy.bytes;
    state.run_bytes = copy.run_bytes;
    state.parts = copy.parts;
    if (copy.owner == nullptr) continue;
    state.last_use_ns = copy.owner->last_use_ns();
    state.is_idle = !copy.is_busy && now_ns - state.last_use_ns >= idle_ns_;
  }
  return states;
}

// Marks those of these copies as busy that a run uses. Returns true if there are any.
bool DeviceMemory::FindBusy(const std::vector<size_t>& dropped) {
  bool has_busy = false;
  for (const size_t index : dropped) {
    Copy& copy = CopyAt(index);
    copy.is_busy = copy.owner->IsInUse();
    has_busy = has_busy || copy.is_busy;
  }
  return has_busy;
}

// Takes these copies out of their owners. A copy that a run has begun to use is marked as busy
// instead, and then it returns false.
bool DeviceMemory::TakeOut(const std::vector<size_t>& dropped,
                           std::vector<std::shared_ptr<const void>>* taken) {
  for (const size_t index : dropped) {
    Copy& copy = CopyAt(index);
    std::shared_ptr<const void> out = copy.owner->TakeOut();
    copy.is_busy = out == nullptr;
    if (copy.is_busy) return false;
    copy.owner = nullptr;
    taken->push_back(std::move(out));
  }
  return true;
}

// Drops idle copies until `wish` fits, and appends them to `*taken`. Returns false if it cannot
// fit; then nothing is dropped, unless a run begins to use one of the copies meanwhile.
bool DeviceMemory::MakeRoom(const CopyState& wish, int64_t now_ns,
                            std::vector<std::shared_ptr<const void>>* taken) {
  for (Copy& copy : copies_) copy.is_busy = false;
  for (;;) {
    std::vector<CopyState> states = States(now_ns);
    states.push_back(wish);
    const std::optional<std::vector<size_t>> dropped = ChooseDropped(bounds_, states);
    if (!dropped) return false;
    if (!FindBusy(*dropped) && TakeOut(*dropped, taken)) return true;
  }
}

SharedPart DeviceMemory::MakePart(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return {++part_count_, bytes};
}

base::StatusOr<DeviceMemory::CopyCharge> DeviceMemory::ChargeCopy(
    const std::string& model, int64_t bytes, int64_t run_bytes, Owner* owner, int64_t now_ns,
    const std::vector<SharedPart>& parts) {
  std::vector<std::shared_ptr<const void>> taken;
  std::unique_lock lock(mutex_);
  if (!MakeRoom({model, bytes, run_bytes, false, now_ns, parts}, now_ns, &taken)) {
    lock.unlock();
    CopyBytes all;
    all.Add(bytes, parts);
    return NoRoom("the parameters", all.bytes(), run_bytes);
  }
  copies_.push_back({model, bytes, run_bytes, owner, /*is_busy=*/false, parts});
  CountCopies();
  CopyCharge charge(this, std::prev(copies_.end()));
  lock.unlock();
  // Frees the memory, and returns the charges.
  taken.clear();
  lock.lock();
  const bool has_room = returned_.wait_for(lock, std::chrono::nanoseconds(kRunsEndNs),
                                           [&] { return HasRoomForRuns(model, /*more_bytes=*/0); });
  lock.unlock();
  if (has_room) return charge;
  return base::Status(base::Code::kResourceExhausted,
                      "runs on the accelerator do not end, and the parameters need their memory");
}

base::StatusOr<DeviceMemory::CopyCharge> DeviceMemory::ChargeProgram(const std::string& model,
                                                                     int64_t bytes,
                                                                     int64_t run_bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<CopyState> states = States(/*now_ns=*/0);
  states.push_back({model, bytes, run_bytes, false, 0});
  if (!Fits(bounds_, states, std::vector<bool>(states.size(), false)) ||
      !HasRoomForRuns(model, bytes)) {
    return NoRoom("the instructions of a program", bytes, run_bytes);
  }
  copies_.push_back({model, bytes, run_bytes, /*owner=*/nullptr, /*is_busy=*/false});
  CountCopies();
  return CopyCharge(this, std::prev(copies_.end()));
}

void DeviceMemory::Forget(const Owner* owner) {
  const std::lock_guard lock(mutex_);
  for (Copy& copy : copies_) {
    if (copy.owner == owner) copy.owner = nullptr;
  }
}

int64_t DeviceMemory::CopyBytesOf(const std::string& model) const {
  const auto found = copy_bytes_.find(model);
  return found == copy_bytes_.end() ? 0 : found->second;
}

// Counts the bytes of the copies after a change, because each run needs them.
void DeviceMemory::CountCopies() {
  CopyBytes all;
  std::map<std::string, CopyBytes> by_model;
  for (const Copy& copy : copies_) {
    all.Add(copy.bytes, copy.parts);
    by_model[copy.model].Add(copy.bytes, copy.parts);
  }
  all_copy_bytes_ = all.bytes();
  copy_bytes_.clear();
  for (const auto& [model, copies] : by_model) copy_bytes_[model] = copies.bytes();
}

// True if the copies leave room for the runs under way, and for `more_bytes` of `model`.
bool DeviceMemory::HasRoomForRuns(const std::string& model, int64_t more_bytes) const {
  const auto own = run_bytes_.find(model);
  const int64_t own_bytes = own == run_bytes_.end() ? 0 : own->second;
  return all_copy_bytes_ + all_run_bytes_ + more_bytes <= bounds_.limit_bytes &&
         CopyBytesOf(model) + own_bytes + more_bytes <= bounds_.QuotaOf(model);
}

DeviceMemory::RunCharge DeviceMemory::ChargeRun(const std::string& model, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!HasRoomForRuns(model, bytes)) return {};
  if (bytes > 0) run_bytes_[model] += bytes;
  all_run_bytes_ += bytes;
  return {this, model, bytes};
}

std::pair<int64_t, int64_t> DeviceMemory::ChargedBytes(const std::string& model) const {
  const std::lock_guard lock(mutex_);
  const auto runs = run_bytes_.find(model);
  return {CopyBytesOf(model), runs == run_bytes_.end() ? 0 : runs->second};
}

MemoryUse DeviceMemory::Use(int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  MemoryUse use;
  use.limit_bytes = bounds_.limit_bytes;
  CopyBytes in_use;
  for (const CopyState& copy : States(now_ns)) {
    if (!copy.is_idle) in_use.Add(copy.bytes, copy.parts);
  }
  use.copy_bytes = all_copy_bytes_;
  use.idle_bytes = all_copy_bytes_ - in_use.bytes();
  return use;
}

void DeviceMemory::SetParts(Copies::iterator copy, const std::vector<SharedPart>& parts) {
  const std::lock_guard lock(mutex_);
  copy->parts = parts;
  CountCopies();
  returned_.notify_all();
}

void DeviceMemory::Return(Copies::iterator copy) {
  const std::lock_guard lock(mutex_);
  copies_.erase(copy);
  CountCopies();
  returned_.notify_all();
}

void DeviceMemory::ReturnRun(const std::string& model, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  // A run of no bytes is not counted, so the last one of them may find nothing.
  const auto own = run_bytes_.find(model);
  if (own != run_bytes_.end() && (own->second -= bytes) == 0) run_bytes_.erase(own);
  all_run_bytes_ -= bytes;
  returned_.notify_all();
}

}  // namespace millpond::pjrt
