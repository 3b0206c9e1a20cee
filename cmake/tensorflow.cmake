# The target `tensorflow`: headers and the two libraries of the installed wheel (design.md, seam 1).
# Not there in a sanitizer build, which leaves out all that includes TensorFlow.
if(MILLPOND_SANITIZE)
  return()
endif()

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT MILLPOND_TENSORFLOW_DIR)
  # find_spec and not import: importing TensorFlow takes 5 s.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; s = u.find_spec('tensorflow'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE MILLPOND_TENSORFLOW_DIR
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT EXISTS "${MILLPOND_TENSORFLOW_DIR}/libtensorflow_cc.so.2")
  message(FATAL_ERROR "no libtensorflow_cc.so.2 in '${MILLPOND_TENSORFLOW_DIR}': "
                      "pip install 'tensorflow>=2.21,<2.22' for ${Python_EXECUTABLE}")
endif()
message(STATUS "TensorFlow: ${MILLPOND_TENSORFLOW_DIR}")

add_library(tensorflow INTERFACE)
target_include_directories(tensorflow SYSTEM INTERFACE ${MILLPOND_TENSORFLOW_DIR}/include)
target_compile_definitions(tensorflow INTERFACE EIGEN_MAX_ALIGN_BYTES=64)
# --no-as-needed: the libraries register kernels and sessions when they are loaded, though we may
# use few of their symbols ("No session factory registered").
target_link_options(tensorflow INTERFACE -Wl,--no-as-needed)
target_link_libraries(tensorflow INTERFACE ${MILLPOND_TENSORFLOW_DIR}/libtensorflow_cc.so.2
                                           ${MILLPOND_TENSORFLOW_DIR}/libtensorflow_framework.so.2)
