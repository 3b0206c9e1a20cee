#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

// A struct crosses the seam as a frozen dataclass. ValueClass<T> names the dataclass of T and lists
// its fields, once, and the conversions follow from the list. scripts/check_seam.py compares each
// list with its dataclass.
namespace millpond::python {

// A field of a value. `access` is
// - a data member, if the field crosses as the member's type,
// - a function R(const T&), which returns the field for Python,
// - or a function void(T&, V), which sets the field from Python.
template <typename Access>
struct Field {
  const char* name;
  Access access;
};
template <typename Access>
Field(const char*, Access) -> Field<Access>;

// A specialization has `kModule` and `kName` of the dataclass, and `kFields`, a tuple of Field in
// the order of the dataclass.
template <typename T>
struct ValueClass;

// A value of an enumeration, which crosses as its name.
template <typename E>
struct Named {
  E value;
};

// A specialization has `kNames`, in the order of the values, and the `kName` of the tuple of these
// names, a constant of serving/data_plane.
template <typename E>
struct EnumNames;

// The dataclass of T, from RegisterValue to the end of the process.
template <typename T>
inline PyObject* value_type = nullptr;

template <typename T, typename = void>
inline constexpr bool kIsValue = false;
template <typename T>
inline constexpr bool kIsValue<T, std::void_t<decltype(ValueClass<T>::kName)>> = true;

// The type as which a field crosses.
template <typename Access>
struct FieldType;
template <typename T, typename V>
struct FieldType<V T::*> {
  using Type = V;
};
template <typename T, typename R>
struct FieldType<R (*)(const T&)> {
  using Type = std::decay_t<R>;
};
template <typename T, typename V>
struct FieldType<void (*)(T&, V)> {
  using Type = V;
};

template <typename T, typename Owner, typename V>
void SetField(T& value, V Owner::*member, V&& field) {
  value.*member = std::forward<V>(field);
}
template <typename T, typename V>
void SetField(T& value, void (*set)(T&, V), typename FieldType<void (*)(T&, V)>::Type field) {
  set(value, std::forward<V>(field));
}

template <typename V>
inline constexpr bool kIsSharedPointer = false;
template <typename V>
inline constexpr bool kIsSharedPointer<std::shared_ptr<V>> = true;

// Returns the name of a class of the module, which is registered already.
template <typename V>
std::string ClassName() {
  return nanobind::cast<std::string>(nanobind::type<std::remove_cv_t<V>>().attr("__name__"));
}

// Returns the type of a field as the module's signatures have it. A pointer may be None.
template <typename V>
std::string TypeText() {
  using Caster = nanobind::detail::make_caster<V>;
  if constexpr (kIsSharedPointer<V>) {
    return ClassName<typename V::element_type>() + " | None";
  } else if constexpr (std::is_pointer_v<V>) {
    return ClassName<std::remove_pointer_t<V>>() + " | None";
  } else if constexpr (nanobind::detail::is_base_caster_v<Caster>) {
    return ClassName<V>();
  } else {
    return Caster::Name.text;
  }
}

// Gives the names of an enumeration out in the module's `enum_names`.
template <typename E>
void RegisterEnum(nanobind::module_& module) {
  nanobind::list names;
  for (const char* const name : EnumNames<E>::kNames) names.append(name);
  module.attr("enum_names")[EnumNames<E>::kName] = nanobind::tuple(names);
}

// Makes T cross as its dataclass, and names its fields in the module's `value_fields`.
template <typename T>
void RegisterValue(nanobind::module_& module) {
  namespace nb = nanobind;
  using Class = ValueClass<T>;
  nb::object type = nb::module_::import_(Class::kModule).attr(Class::kName);
  value_type<T> = type.release().ptr();
  nb::dict fields;
  std::apply(
      [&](const auto&... field) {
        ((fields[field.name] =
              TypeText<typename FieldType<std::decay_t<decltype(field.access)>>::Type>()),
         ...);
      },
      Class::kFields);
  module.attr("value_fields")[Class::kName] = std::move(fields);
}

}  // namespace millpond::python

namespace nanobind::detail {

template <typename E>
struct type_caster<millpond::python::Named<E>> {
  static constexpr auto& kNames = millpond::python::EnumNames<E>::kNames;
  NB_TYPE_CASTER(millpond::python::Named<E>, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    const char* const name = PyUnicode_Check(source.ptr()) ? PyUnicode_AsUTF8(source.ptr()) : "";
    if (name == nullptr) PyErr_Clear();
    for (size_t i = 0; name != nullptr && i < kNames.size(); ++i) {
      value.value = static_cast<E>(i);
      if (std::string_view(name) == kNames[i]) return true;
    }
    return false;
  }

  static handle from_cpp(Value source, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_FromString(kNames[static_cast<size_t>(source.value)]);
  }
};

template <typename T>
struct type_caster<T, enable_if_t<millpond::python::kIsValue<T>>> {
  using Class = millpond::python::ValueClass<T>;
  NB_TYPE_CASTER(T, const_name(Class::kName))

  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    if (!PyObject_TypeCheck(source.ptr(),
                            reinterpret_cast<PyTypeObject*>(millpond::python::value_type<T>))) {
      return false;
    }
    return std::apply(
        [&](const auto&... field) { return (Take(source, field, flags, cleanup) && ...); },
        Class::kFields);
  }

  static handle from_cpp(const T& source, rv_policy policy, cleanup_list* cleanup) noexcept {
    return std::apply(
        [&](const auto&... field) {
          const std::array<object, sizeof...(field)> fields = {
              steal(Give(std::invoke(field.access, source), policy, cleanup))...};
          std::array<PyObject*, sizeof...(field)> arguments;
          for (size_t i = 0; i < fields.size(); ++i) {
            if (!fields[i].is_valid()) return handle();
            arguments[i] = fields[i].ptr();
          }
          return handle(PyObject_Vectorcall(millpond::python::value_type<T>, arguments.data(),
                                            arguments.size(), nullptr));
        },
        Class::kFields);
  }

 private:
  // Sets one field from the attribute of that name.
  template <typename Access>
  bool Take(handle source, const millpond::python::Field<Access>& field, uint32_t flags,
            cleanup_list* cleanup) noexcept {
    using V = typename millpond::python::FieldType<Access>::Type;
    const object attribute = steal(PyObject_GetAttrString(source.ptr(), field.name));
    if (!attribute.is_valid()) {
      PyErr_Clear();
      return false;
    }
    make_caster<V> caster;
    if (!caster.from_python(attribute, flags_for_local_caster<V>(flags), cleanup)) return false;
    millpond::python::SetField(value, field.access, caster.operator cast_t<V>());
    return true;
  }

  template <typename V>
  static handle Give(V&& field, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<V>::from_cpp(std::forward<V>(field), policy, cleanup);
  }
};

}  // namespace nanobind::detail
