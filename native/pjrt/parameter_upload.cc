#include "native/pjrt/parameter_upload.h"

#include <utility>

#include "native/pjrt/chunked_upload.h"
#include "native/pjrt/copies.h"

namespace millpond::pjrt {
namespace {

int64_t BytesOf(const HostTensor& tensor) { return static_cast<int64_t>(tensor.bytes); }

ParameterCopy::Buffer Own(DeviceBuffer buffer) {
  return std::make_shared<const DeviceBuffer>(std::move(buffer));
}

}  // namespace

ParameterUpload::ParameterUpload(const Accelerator& accelerator,
                                 const std::vector<HostTensor>& parameters)
    : accelerator_(accelerator),
      parameters_(parameters),
      plans_(parameters.size()),
      buffers_(parameters.size()) {}

base::StatusOr<std::shared_ptr<const ParameterCopy>> ParameterUpload::Make(const UploadWish& wish) {
  MakePlans(wish.model);
  auto charge = Charge(wish);
  if (!charge.ok()) return charge.status();
  base::Status sent = Send();
  if (sent.ok()) AddTables(wish.model);
  plans_.clear();
  std::vector<ParameterCopy::Buffer> buffers = std::exchange(buffers_, {});
  if (sent.ok()) {
    return std::make_shared<const ParameterCopy>(std::move(charge.value()), std::move(buffers));
  }
  buffers.clear();  // before the charge ends
  return sent;
}

// Holds the tables that are there, so that no one frees them.
void ParameterUpload::MakePlans(const std::string& model) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const HostTensor& tensor = parameters_[i];
    Plan& plan = plans_[i];
    if (tensor.contents == nullptr) continue;
    plan.found = accelerator_.tables().Find(model, tensor);
    if (plan.found && !plan.found->rows.empty()) plan.found.reset();
    plan.part = plan.found ? plan.found->part : accelerator_.memory().MakePart(BytesOf(tensor));
    if (plan.found) buffers_[i] = plan.found->buffer;
  }
}

base::StatusOr<DeviceMemory::CopyCharge> ParameterUpload::Charge(const UploadWish& wish) const {
  int64_t own_bytes = 0;
  std::vector<SharedPart> parts;
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].part.id == 0) {
      own_bytes += BytesOf(parameters_[i]);
    } else {
      parts.push_back(plans_[i].part);
    }
  }
  return accelerator_.memory().ChargeCopy(wish.model, own_bytes, wish.run_bytes, wish.owner,
                                          wish.now_ns, parts);
}

base::Status ParameterUpload::Send() {
  base::Status sent = SendChunks();
  if (sent.code() == base::Code::kUnimplemented) sent = SendWhole();
  MILLPOND_RETURN_IF_ERROR(sent);
  for (const auto& buffer : buffers_) MILLPOND_RETURN_IF_ERROR(buffer->AwaitReady());
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
  const auto transfers = accelerator_.MakeTransfers(tensors);
  if (!transfers.ok()) return transfers.status();
  std::vector<DeviceBuffer> made = transfers.value()->TakeBuffers();
  ChunkedUpload upload(accelerator_.api(), transfers.value().get(), accelerator_.pinned().get(),
                       &accelerator_.upload_staging());
  for (size_t i = 0; i < tensors.size(); ++i) {
    MILLPOND_RETURN_IF_ERROR(upload.Send(i, tensors[i]));
  }
  MILLPOND_RETURN_IF_ERROR(upload.Await());
  unpinned_bytes_ += upload.unpinned_bytes();
  for (size_t i = 0; i < tensors.size(); ++i) {
    sent_bytes_ += static_cast<int64_t>(tensors[i].bytes);
    buffers_[indices[i]] = Own(std::move(made[i]));
  }
  return {};
}

base::Status ParameterUpload::SendWhole() {
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
