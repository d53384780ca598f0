include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/flexc-targets.cmake)

# A program finds the CPU backend of this very installation, wherever it was put.
get_filename_component(flexc_LIBRARY_DIR ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
if(EXISTS ${flexc_LIBRARY_DIR}/libflexc_cpu.so)
  target_link_options(flexc::flexc INTERFACE LINKER:-rpath,${flexc_LIBRARY_DIR})
endif()

# A project without C++ links with the C compiler, which does not know C++'s library.
get_property(flexc_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
get_target_property(flexc_KIND flexc::flexc TYPE)
if(CXX IN_LIST flexc_languages)
  target_compile_features(flexc::flexc INTERFACE cxx_std_20)
elseif(flexc_KIND STREQUAL "STATIC_LIBRARY")
  target_link_libraries(flexc::flexc INTERFACE stdc++ m)
endif()
