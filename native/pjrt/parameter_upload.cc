#include "native/pjrt/parameter_upload.h"

#include <utility>

#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/copies.h"
#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {
namespace {

int64_t BytesOf(const HostTensor& tensor) { return static_cast<int64_t>(tensor.bytes); }

// If more of a table differs than one part in so many, sending all of it costs little more.
constexpr int64_t kRowsShare = 2;

ParameterCopy::Buffer Own(DeviceBuffer buffer) {
  return std::make_shared<const DeviceBuffer>(std::move(buffer));
}

}  // namespace

ParameterUpload::ParameterUpload(const Accelerator& accelerator,
                                 const std::vector<HostTensor>& parameters,
                                 const RowScatters& scatters)
    : accelerator_(accelerator),
      parameters_(parameters),
      scatters_(scatters),
      plans_(parameters.size()),
      buffers_(parameters.size()) {}

base::StatusOr<std::shared_ptr<const ParameterCopy>> ParameterUpload::Make(const UploadWish& wish) {
  // Each upload would wait as long, and keep as much for ever.
  if (accelerator_.is_lost()) return Accelerator::LostStatus();
  MakePlans(wish.model);
  const bool is_first =
      wish.is_of_load && accelerator_.memory().ChargedBytes(wish.model).first == 0;
  auto charge = Charge(wish);
  if (!charge.ok()) return charge.status();
  Scatter(wish.model);
  if (!lost_.ok()) return KeepAll(std::move(charge.value()));
  charge.value().SetParts(Parts(/*with_sources=*/false));
  base::Status sent = Send();
  if (sent.ok()) AddTables(wish.model);
  // The next version is as large, and lives beside this one.
  if (sent.ok() && is_first) {
    // Charged meanwhile, so that no run of that moment finds less than it was promised.
    const auto charged = accelerator_.memory().ChargeProgram(wish.model, sent_bytes_, 0);
    if (charged.ok()) accelerator_.Reserve(sent_bytes_);
  }
  if (sent.ok() && wish.is_of_load) WarmUpScatters(wish.model);
  if (is_abandoned_) {
    accelerator_.CountAsLost();
    lost_ = sent;
  }
  if (!lost_.ok()) return KeepAll(std::move(charge.value()));
  plans_.clear();
  std::vector<ParameterCopy::Buffer> buffers = std::exchange(buffers_, {});
  if (sent.ok()) {
    return std::make_shared<const ParameterCopy>(std::move(charge.value()), std::move(buffers));
  }
  buffers.clear();  // before the charge ends
  return sent;
}

// The device may use the buffers at any time, and they take its memory.
base::Status ParameterUpload::KeepAll(DeviceMemory::CopyCharge charge) {
  KeepForEver(std::make_pair(std::move(charge), std::exchange(buffers_, {})));
  return lost_;
}

// Holds the tables that are there, so that no one frees them.
void ParameterUpload::MakePlans(const std::string& model) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].contents == nullptr) continue;
    Plan& plan = plans_[i];
    plan.found = accelerator_.tables().Find(model, parameters_[i]);
    if (plan.found && plan.found->rows.empty()) {
      plan.part = plan.found->part;
      buffers_[i] = plan.found->buffer;
      continue;
    }
    plan.part = accelerator_.memory().MakePart(BytesOf(parameters_[i]));
    PlanRows(i);
  }
}

// Decides if the rows of a table that differ are sent, or all of it.
void ParameterUpload::PlanRows(size_t index) {
  Plan& plan = plans_[index];
  const HostTensor& tensor = parameters_[index];
  if (!plan.found) {
    return SendInFull(index, "no version on the accelerator has a table of its base");
  }
  plan.scatter = scatters_.Find(tensor);
  if (plan.scatter == nullptr) {
    return SendInFull(index, "rows of its shape or type cannot be written on the accelerator");
  }
  const auto row_count = static_cast<int64_t>(plan.found->rows.size());
  if (plan.scatter->BytesFor(row_count, tensor) <= BytesOf(tensor) / kRowsShare) return;
  SendInFull(index, std::to_string(row_count) + " of its rows differ, which is too many");
}

void ParameterUpload::SendInFull(size_t index, const std::string& reason) {
  plans_[index].found.reset();
  plans_[index].scatter = nullptr;
  const TableContents& contents = *parameters_[index].contents;
  if (!full_reason_.empty() || contents.changed_rows.empty()) return;
  full_reason_ = contents.name + ": " + reason;
}

// Returns the parts of the copy, and the tables that some of them are made from.
std::vector<SharedPart> ParameterUpload::Parts(bool with_sources) const {
  std::vector<SharedPart> parts;
  for (const Plan& plan : plans_) {
    if (plan.part.id != 0) parts.push_back(plan.part);
    if (with_sources && plan.scatter != nullptr) parts.push_back(plan.found->part);
  }
  return parts;
}

// The copy is charged its sources as long as it needs them, because their version may be dropped.
base::StatusOr<DeviceMemory::CopyCharge> ParameterUpload::Charge(const UploadWish& wish) {
  int64_t own_bytes = 0;
  bool has_sources = false;
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].part.id == 0) own_bytes += BytesOf(parameters_[i]);
    has_sources = has_sources || plans_[i].scatter != nullptr;
  }
  const auto charge = [&] {
    return accelerator_.memory().ChargeCopy(wish.model, own_bytes, wish.run_bytes, wish.owner,
                                            wish.now_ns, Parts(/*with_sources=*/true));
  };
  auto charged = charge();
  if (!has_sources || charged.status().code() != base::Code::kResourceExhausted) return charged;
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].scatter == nullptr) continue;
    SendInFull(i, "the accelerator has no room for it beside the table that it would be made from");
  }
  return charge();
}

// Makes tables of others that differ in some rows. A table is computed while the next one's rows
// are gathered.
void ParameterUpload::Scatter(const std::string& model) {
  std::optional<ScatterUnderWay> last;
  for (size_t i = 0; i < plans_.size() && lost_.ok(); ++i) {
    if (plans_[i].scatter == nullptr) continue;
    auto started = StartScatter(i, model);
    // The blocks of the last one may have the memory.
    const bool must_wait = started.status().code() == base::Code::kResourceExhausted && last;
    if (last) FinishScatter(*std::exchange(last, std::nullopt));
    if (must_wait && lost_.ok()) started = StartScatter(i, model);
    if (started.ok()) {
      last = {i, std::move(started.value())};
    } else {
      GiveUpScatter(i, started.status());
    }
  }
  if (last) FinishScatter(*last);
}

base::StatusOr<std::shared_ptr<RowScatter::Steps>> ParameterUpload::StartScatter(
    size_t index, const std::string& model) {
  const Plan& plan = plans_[index];
  return plan.scatter->Start(accelerator_, model, *plan.found->buffer, plan.found->rows,
                             parameters_[index]);
}

void ParameterUpload::FinishScatter(const ScatterUnderWay& scatter) {
  const auto& [index, steps] = scatter;
  base::StatusOr<DeviceBuffer> made = RowScatter::Finish(steps);
  if (!made.ok()) return GiveUpScatter(index, made.status());
  Plan& plan = plans_[index];
  buffers_[index] = Own(std::move(made.value()));
  const auto row_count = static_cast<int64_t>(plan.found->rows.size());
  sent_bytes_ += plan.scatter->BytesFor(row_count, parameters_[index]);
  plan.found.reset();
  plan.scatter = nullptr;
}

// Sends a table as a whole, unless the device is gone, and may read its source at any time.
void ParameterUpload::GiveUpScatter(size_t index, const base::Status& failed) {
  if (!accelerator_.is_lost()) return SendInFull(index, failed.message());
  KeepForEver(plans_[index].found->buffer);
  lost_ = failed;
}

base::Status ParameterUpload::Send() {
  base::Status sent = SendChunks();
  if (sent.code() == base::Code::kUnimplemented) sent = SendTensors();
  MILLPOND_RETURN_IF_ERROR(sent);
  for (const auto& buffer : buffers_) {
    base::Status written;
    is_abandoned_ = !buffer->AwaitReadyFor(accelerator_.stall_ns(), &written);
    MILLPOND_RETURN_IF_ERROR(written);
  }
  return {};
}

base::Status ParameterUpload::SendChunks() {
  std::vector<size_t> indices;
  std::vector<HostTensor> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (buffers_[i] != nullptr) continue;
    indices.push_back(i);
    tensors.push_back(parameters_[i]);
  }
  if (tensors.empty()) return {};
  auto transfers = accelerator_.MakeTransfers(tensors);
  if (!transfers.ok()) return transfers.status();
  std::vector<DeviceBuffer> made = transfers.value()->TakeBuffers();
  ChunkedUpload::Limits limits;
  limits.stall_ns = accelerator_.stall_ns();
  ChunkedUpload upload(accelerator_.api(), transfers.value().get(), accelerator_.pinned().get(),
                       &accelerator_.upload_staging(), limits);
  base::Status copied = upload.Send(tensors, made);
  if (upload.is_abandoned()) {
    is_abandoned_ = true;
    KeepForEver(std::make_pair(std::move(transfers.value()), std::move(made)));
    return copied;
  }
  MILLPOND_RETURN_IF_ERROR(copied);
  unpinned_bytes_ += upload.unpinned_bytes();
  for (size_t i = 0; i < tensors.size(); ++i) {
    sent_bytes_ += static_cast<int64_t>(tensors[i].bytes);
    buffers_[indices[i]] = Own(std::move(made[i]));
  }
  return {};
}

base::Status ParameterUpload::SendTensors() {
  Copies copies(accelerator_.api());
  int64_t under_way_bytes = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (buffers_[i] != nullptr) continue;
    if (under_way_bytes >= kUnderWayBytes) {
      MILLPOND_RETURN_IF_ERROR(copies.Await());
      under_way_bytes = 0;
    }
    under_way_bytes += BytesOf(parameters_[i]);
    PJRT_Event* copied = nullptr;
    base::StatusOr<DeviceBuffer> buffer = accelerator_.StartUpload(parameters_[i], &copied);
    if (!buffer.ok()) return buffer.status();
    copies.Add(copied);
    buffers_[i] = Own(std::move(buffer.value()));
    sent_bytes_ += BytesOf(parameters_[i]);
    unpinned_bytes_ += BytesOf(parameters_[i]);
  }
  return copies.Await();
}

// Runs the programs of a shape that no upload has run yet, on a table of it.
void ParameterUpload::WarmUpScatters(const std::string& model) {
  for (size_t i = 0; i < parameters_.size() && lost_.ok(); ++i) {
    const HostTensor& tensor = parameters_[i];
    if (tensor.contents == nullptr) continue;
    const RowScatter* const scatter = scatters_.Find(tensor);
    if (scatter != nullptr) lost_ = scatter->WarmUp(accelerator_, model, *buffers_[i], tensor);
  }
}

// Lets later uploads find the tables that this one has made.
void ParameterUpload::AddTables(const std::string& model) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const HostTensor& tensor = parameters_[i];
    if (tensor.contents == nullptr || plans_[i].found) continue;
    accelerator_.tables().Add(
        {model, tensor.contents, tensor.type, tensor.dims, plans_[i].part, buffers_[i]});
  }
}

}  // namespace millpond::pjrt
