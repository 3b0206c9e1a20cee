#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/base/no_memory.h"
#include "native/inference/metadata.h"
#include "native/python/binding.h"
#include "native/rest/rest_workers.h"

namespace millpond::python {
namespace {

namespace nb = nanobind;
using rest::EndedRequest;
using rest::RestRequest;
using rest::RestWorkers;
using rest::RestWorkersOptions;

metrics::Method MethodOf(std::string_view name) {
  for (const metrics::Method method : metrics::AllMethods()) {
    if (name == metrics::MethodName(method)) return method;
  }
  ThrowIfError(base::InvalidArgument("'" + std::string(name) + "' is not a recorded method"));
  return {};
}

std::string ToString(nb::handle bytes) {
  const auto typed = nb::cast<nb::bytes>(bytes);
  return {typed.c_str(), typed.size()};
}

// Headers as in ASGI: pairs of bytes, with names in lower case.
using HeaderList = nb::typed<nb::list, nb::typed<nb::tuple, nb::bytes, nb::bytes>>;

rest::RequestHeaders ToHeaders(const HeaderList& pairs) {
  std::vector<std::pair<std::string, std::string>> fields;
  fields.reserve(pairs.size());
  for (const nb::handle pair : pairs) fields.emplace_back(ToString(pair[0]), ToString(pair[1]));
  return rest::RequestHeaders(std::move(fields));
}

// Returns the memory of the headers' strings.
size_t BytesOf(const HeaderList& pairs) {
  size_t bytes = 0;
  for (const nb::handle pair : pairs) {
    bytes += sizeof(std::pair<std::string, std::string>) + nb::len(nb::handle(pair[0])) +
             nb::len(nb::handle(pair[1]));
  }
  return bytes;
}

// Python's reference to the workers. It keeps the bodies of the requests that they have.
class PyRestWorkers {
 public:
  PyRestWorkers(servable::ServingMap* map, RestWorkersOptions options)
      : map_(map), options_(options), workers_(map, std::move(options)) {}
  ~PyRestWorkers() {
    const nb::gil_scoped_release release;
    workers_.Shutdown(0);
  }
  PyRestWorkers(const PyRestWorkers&) = delete;
  PyRestWorkers& operator=(const PyRestWorkers&) = delete;

  RestWorkers& workers() { return workers_; }

  uint64_t Submit(std::string_view method, std::string model, std::optional<int64_t> version,
                  std::optional<std::string> label, const HeaderList& headers, nb::bytes body,
                  double timeout_seconds) {
    RestRequest request;
    request.received_ns = base::MonotonicNs();
    request.method = MethodOf(method);
    request.model = {std::move(model), version, std::move(label), ""};
    request.headers = ToHeaders(headers);
    request.body = {body.c_str(), body.size()};
    request.deadline_ns = request.received_ns + SecondsToNs(timeout_seconds);
    base::ByteBudget::Share charge(options_.budget.get());
    const size_t bytes = body.size() + BytesOf(headers);
    if (!charge.Resize(static_cast<int64_t>(bytes))) {
      ThrowIfError(base::NoMemoryFor(
          "a request of " + std::to_string(bytes) + " bytes, headers included", *options_.budget));
    }
    const uint64_t id = ValueOrThrow(workers_.Submit(std::move(request)));
    bodies_.emplace(id, Body{std::move(body), std::move(charge)});
    return id;
  }

  std::vector<EndedRequest> TakeEnded() {
    std::vector<EndedRequest> ended = workers_.TakeEnded();
    for (const EndedRequest& request : ended) bodies_.erase(request.id);
    return ended;
  }

  nb::bytes GetModelMetadata(std::string model, std::optional<int64_t> version,
                             std::optional<std::string> label);

 private:
  // A body, which a run may read for longer than its client waits, with the charge of its request.
  struct Body {
    nb::bytes bytes;
    base::ByteBudget::Share charge;
  };

  servable::ServingMap* const map_;
  const RestWorkersOptions options_;
  // Guarded by the GIL. Declared before the workers, which read the bodies until they end.
  std::unordered_map<uint64_t, Body> bodies_;
  RestWorkers workers_;
};

// Answers on the caller's thread, because it only reads a string that was made when the version was
// loaded. The default version answers, and never the canary by its share. A client gets the
// canary's metadata if it names the canary's number.
nb::bytes PyRestWorkers::GetModelMetadata(std::string model, std::optional<int64_t> version,
                                          std::optional<std::string> label) {
  const int64_t received_ns = base::MonotonicNs();
  const inference::ModelSpec spec{std::move(model), version, std::move(label), ""};
  auto found = map_->LookUp(spec.name, inference::ToVersionChoice(spec, /*metadata=*/nullptr));
  const std::string reply = found.ok() ? inference::EncodeMetadata(*found.value()) : std::string();
  metrics::RequestRecorder& recorder =
      found.ok() ? found.value().requests() : options_.statistics->Unmatched(spec.name);
  const auto times = metrics::PhaseTimes::OfTotal(base::MonotonicNs() - received_ns);
  recorder.Of(metrics::Method::kGetModelMetadata).Record(found.status().code(), times);
  ThrowIfError(found.status());
  return nb::bytes(reply.data(), reply.size());
}

void MakeWorkers(PyRestWorkers* self, servable::ServingMap& map, int thread_count, int spare_count,
                 int nice, size_t waiting_count_max, size_t body_bytes_max,
                 const PyRequestStatistics& statistics, std::shared_ptr<metrics::SpanBuffer> spans,
                 std::shared_ptr<servable::Admission> admission, size_t reply_bytes_max,
                 std::shared_ptr<base::ByteBudget> budget, double first_version_wait_seconds) {
  RestWorkersOptions options;
  options.thread_count = thread_count;
  options.spare_count = spare_count;
  options.nice = nice;
  options.waiting_count_max = waiting_count_max;
  options.body_bytes_max = body_bytes_max;
  options.statistics = statistics.statistics();
  options.spans = std::move(spans);
  options.admission = std::move(admission);
  options.reply_bytes_max = std::min(reply_bytes_max, base::kMaxReplyBytes);
  options.budget = std::move(budget);
  options.first_version_wait_ns = SecondsToNs(first_version_wait_seconds);
  new (self) PyRestWorkers(&map, std::move(options));
}

void RegisterEndedRequest(nb::module_& module) {
  nb::class_<EndedRequest>(module, "EndedRestRequest", nb::is_final())
      .def_ro("id", &EndedRequest::id)
      .def_prop_ro("code",
                   [](const EndedRequest& self) { return static_cast<int>(self.status.code()); })
      .def_prop_ro("message",
                   [](const EndedRequest& self) {
                     // The message may quote bytes of the body, which need not be UTF-8.
                     const std::string& text = self.status.message();
                     return nb::steal<nb::str>(PyUnicode_DecodeUTF8(
                         text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
                   })
      .def("take_body",
           [](EndedRequest& self) {
             // Moves the body out, so that two copies of a large reply do not live while it is
             // sent.
             const base::ReplyBytes taken = std::move(self.reply.body);
             const std::string_view body = taken.view();
             return nb::bytes(body.data(), body.size());
           })
      .def_prop_ro("content_type", [](const EndedRequest& self) { return self.reply.content_type; })
      .def_prop_ro("json_bytes", [](const EndedRequest& self) { return self.reply.json_bytes; })
      .def_prop_ro(
          "is_gzip",
          [](const EndedRequest& self) { return self.coding == rest::ContentCoding::kGzip; })
      .def_prop_ro("version", [](const EndedRequest& self) -> std::optional<int64_t> {
        if (!self.reached) return std::nullopt;
        return self.reached->version;
      });
}

}  // namespace

void RegisterRest(nb::module_& module) {
  RegisterEndedRequest(module);
  nb::class_<servable::WaitingRequests>(module, "WaitingRequests", nb::is_final());
  nb::class_<PyRestWorkers>(module, "RestWorkers", nb::is_final())
      .def_prop_ro("waiting_requests",
                   [](PyRestWorkers& self) { return self.workers().waiting_requests(); })
      .def("__init__", &MakeWorkers, nb::keep_alive<1, 2>(), nb::arg("serving_map"), nb::kw_only(),
           nb::arg("thread_count"), nb::arg("spare_count"), nb::arg("nice"),
           nb::arg("waiting_count_max"), nb::arg("body_bytes_max"), nb::arg("request_statistics"),
           nb::arg("spans").none() = nb::none(), nb::arg("admission").none() = nb::none(),
           nb::arg("reply_bytes_max") = base::kMaxReplyBytes, nb::arg("budget").none() = nb::none(),
           nb::arg("first_version_wait_seconds") = 0.0)
      .def("start", [](PyRestWorkers& self) { ThrowIfError(self.workers().Start()); })
      .def_prop_ro("ended_descriptor",
                   [](PyRestWorkers& self) { return self.workers().ended_descriptor(); })
      .def("submit", &PyRestWorkers::Submit, nb::arg("method"), nb::arg("model"),
           nb::arg("version").none(), nb::arg("label").none(), nb::arg("headers"), nb::arg("body"),
           nb::arg("timeout_seconds"),
           // The binder cannot derive the types of the list's elements.
           nb::sig("def submit(self, method: str, model: str, version: int | None, "
                   "label: str | None, headers: list[tuple[bytes, bytes]], body: bytes, "
                   "timeout_seconds: float) -> int"))
      .def(
          "cancel", [](PyRestWorkers& self, uint64_t id) { self.workers().Cancel(id); },
          nb::arg("id"))
      .def("take_ended", &PyRestWorkers::TakeEnded)
      .def("get_model_metadata", &PyRestWorkers::GetModelMetadata, nb::arg("model"),
           nb::arg("version").none(), nb::arg("label").none())
      .def("end_awaiting", [](PyRestWorkers& self) { self.workers().EndAwaiting(); })
      .def(
          "shutdown",
          [](PyRestWorkers& self, double drain_seconds) {
            return WithoutGil([&] { return self.workers().Shutdown(SecondsToNs(drain_seconds)); });
          },
          nb::arg("drain_seconds"));
}

}  // namespace millpond::python
