#include "native/servable/admission.h"

#include <algorithm>

namespace millpond::servable {
namespace {

// A server at its limit answers hundreds of requests in a tenth of a second. With a shorter pause,
// the refusals themselves would become most of its work.
constexpr int64_t kPushbackMsMin = 50;
constexpr int64_t kPushbackMsMax = 150;

// The step through the range of pauses. It is prime to the length of the range and large, so that
// successive pauses are far apart.
constexpr int64_t kPushbackStride = 37;

// The places that a thread takes at a time, and the part of all places that all threads together
// may have in hand.
constexpr int64_t kPortionMax = 16;
constexpr int64_t kPartsInHand = 4;

int64_t PortionOf(int64_t total_limit) {
  return std::min(kPortionMax, total_limit / (kPartsInHand * base::CellCountForRequestThreads()));
}

constexpr char kRemedy[] = "; try again later, or use another server";

}  // namespace

Admission::Admission(int64_t total_limit)
    : total_limit_(std::max<int64_t>(total_limit, 1)),
      in_flight_(PortionOf(total_limit_)),
      models_(std::make_unique<const Models>()) {}

base::StatusOr<Admission::Ticket> Admission::Enter(std::string_view model) {
  if (!in_flight_.Take(1, total_limit_)) {
    refused_count_.fetch_add(1, std::memory_order_relaxed);
    return base::Status(base::Code::kResourceExhausted,
                        std::to_string(total_limit_) +
                            " requests are in flight, the limit of --max_in_flight_requests" +
                            kRemedy);
  }
  if (!has_model_limits()) return Ticket(this, nullptr);
  Model* const limited = models_.Read([&](const Models& models) -> Model* {
    const auto found = models.find(model);
    return found == models.end() ? nullptr : found->second;
  });
  if (limited == nullptr) return Ticket(this, nullptr);
  Ticket ticket(this, limited);
  const int64_t limit = limited->limit.load(std::memory_order_relaxed);
  const int64_t before = limited->in_flight_count.fetch_add(1, std::memory_order_relaxed);
  if (limit > 0 && before >= limit) return RefuseModel(model, limit);
  return ticket;
}

base::Status Admission::RefuseModel(std::string_view model, int64_t limit) {
  refused_count_.fetch_add(1, std::memory_order_relaxed);
  return {base::Code::kResourceExhausted,
          std::to_string(limit) + " requests to model '" + std::string(model) +
              "' are in flight, max_in_flight_requests in the model's settings" + kRemedy};
}

void Admission::Leave(Model* model) {
  if (model != nullptr) model->in_flight_count.fetch_sub(1, std::memory_order_relaxed);
  in_flight_.Return(1);
}

void Admission::SetModelLimits(const ModelLimits& limits) {
  const std::lock_guard<std::mutex> lock(write_mutex_);
  for (const auto& [name, model] : known_models_) {
    if (limits.count(name) == 0) model->limit.store(0, std::memory_order_relaxed);
  }
  auto models = std::make_unique<Models>();
  for (const auto& [name, limit] : limits) {
    std::unique_ptr<Model>& model = known_models_[name];
    if (model == nullptr) model = std::make_unique<Model>();
    model->limit.store(limit, std::memory_order_relaxed);
    models->emplace(name, model.get());
  }
  models_.Write(std::move(models));
  has_model_limits_.store(!limits.empty(), std::memory_order_relaxed);
}

int64_t Admission::NextPushbackMs() {
  const int64_t nth = refused_count_.load(std::memory_order_relaxed) % 1'000'000;
  return kPushbackMsMin + nth * kPushbackStride % (kPushbackMsMax - kPushbackMsMin + 1);
}

}  // namespace millpond::servable
