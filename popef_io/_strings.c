/* STRING elements as bytes, and back.
 *
 * Optional, as all compiled code is (docs/how-to/tune.md): popef_io/strings.py calls it
 * where it is there. It answers None for whatever is not usual (other objects, strings
 * that are too long, or that extend past the end): the caller then goes the way of plain
 * Python, which also says what is wrong.
 *
 * `pack_strings` and `split_strings` keep the interpreter's lock, so callers pass some thousand strings at
 * a time.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs a little-endian machine"
#endif

#define HEAD 4 /* bytes of the length in front of each string */
#define LONG (1 << 20) /* bytes */

/* Where the bytes of an element are; NULL where it has none, without an error set. */
static const char *bytes_of(PyObject *element, Py_ssize_t *size)
{
    if (PyBytes_CheckExact(element)) {
        *size = PyBytes_GET_SIZE(element);
        return PyBytes_AS_STRING(element);
    }
    if (!PyUnicode_CheckExact(element))
        return NULL;
    const char *text = PyUnicode_AsUTF8AndSize(element, size);
    if (text == NULL)
        PyErr_Clear();
    return text;
}

PyDoc_STRVAR(pack_doc,
"pack_strings(elements, most)\n--\n\n"
"The bytes of a list of bytes and text, each after its length.\n\n"
"None where one is anything else, or has more than `most` bytes.");

static PyObject *pack(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "expected a list and an int");
        return NULL;
    }
    Py_ssize_t most = PyLong_AsSsize_t(args[1]), total = 0, size;
    if (most == -1 && PyErr_Occurred())
        return NULL;
    if (most > UINT32_MAX)
        most = UINT32_MAX;
    /* No other thread changes the list meanwhile, because nothing here runs Python. */
    Py_ssize_t elements = PyList_GET_SIZE(args[0]);
    for (Py_ssize_t i = 0; i < elements; i++) {
        if (bytes_of(PyList_GET_ITEM(args[0], i), &size) == NULL || size > most)
            Py_RETURN_NONE;
        if (total > PY_SSIZE_T_MAX - HEAD - size)
            Py_RETURN_NONE;
        total += HEAD + size;
    }
    PyObject *result = PyBytes_FromStringAndSize(NULL, total);
    if (result == NULL)
        return NULL;
    char *out = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < elements; i++) {
        const char *data = bytes_of(PyList_GET_ITEM(args[0], i), &size);
        uint32_t head = (uint32_t)size;
        memcpy(out, &head, HEAD);
        memcpy(out + HEAD, data, (size_t)size);
        out += HEAD + size;
    }
    return result;
}

/* The arguments of a function of a buffer and two numbers; false with an error set. */
static bool read_arguments(PyObject *const *args, Py_ssize_t count, Py_buffer *view,
                           Py_ssize_t *first, Py_ssize_t *second)
{
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "expected a buffer and two ints");
        return false;
    }
    *first = PyLong_AsSsize_t(args[1]);
    *second = PyLong_AsSsize_t(args[2]);
    return !PyErr_Occurred() && PyObject_GetBuffer(args[0], view, PyBUF_SIMPLE) == 0;
}

/* The strings at `at`; NULL without an error where there are fewer than `count`. */
static PyObject *split_at(const Py_buffer *view, Py_ssize_t *at, Py_ssize_t count)
{
    /* Each string takes its length at least, so the count alone takes no memory. */
    if (*at < 0 || *at > view->len || count < 0 || count > (view->len - *at) / HEAD)
        return NULL;
    PyObject *found = PyList_New(count);
    if (found == NULL)
        return NULL;
    const char *data = view->buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint32_t size;
        PyObject *element = NULL;
        if (view->len - *at >= HEAD) {
            memcpy(&size, data + *at, HEAD);
            *at += HEAD;
            if ((Py_ssize_t)size <= view->len - *at)
                element = PyBytes_FromStringAndSize(data + *at, (Py_ssize_t)size);
        }
        if (element == NULL) {
            Py_DECREF(found);
            return NULL;
        }
        PyList_SET_ITEM(found, i, element);
        *at += size;
    }
    return found;
}

PyDoc_STRVAR(split_doc,
"split_strings(data, at, count)\n--\n\n"
"The next `count` strings of `data` from `at` on, and where they end.\n\n"
"None where one extends past the end.");

static PyObject *split(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t at, strings;
    Py_buffer view;
    if (!read_arguments(args, count, &view, &at, &strings))
        return NULL;
    PyObject *found = split_at(&view, &at, strings);
    PyBuffer_Release(&view);
    if (found != NULL)
        return Py_BuildValue("Nn", found, at);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Where `count` strings end; -1 where one is too long or extends past the end. */
static Py_ssize_t end_of(const char *data, Py_ssize_t length, Py_ssize_t count,
                         uint32_t most)
{
    Py_ssize_t at = 0;
    for (; count; count--) {
        uint32_t size;
        if (length - at < HEAD)
            return -1;
        memcpy(&size, data + at, HEAD);
        at += HEAD;
        if (size > most || (Py_ssize_t)size > length - at)
            return -1;
        at += size;
    }
    return at;
}

PyDoc_STRVAR(end_doc,
"end_of_strings(data, count, most)\n--\n\n"
"Where the first `count` strings of `data` end.\n\n"
"None where one extends past the end, or has more than `most` bytes.");

static PyObject *end(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t strings, most;
    Py_buffer view;
    if (!read_arguments(args, count, &view, &strings, &most))
        return NULL;
    Py_ssize_t found = -1;
    if (strings >= 0 && most >= 0) {
        /* The view keeps the memory. If others change it meanwhile, the result is wrong,
         * but nothing outside it is read. */
        PyThreadState *others = view.len > LONG ? PyEval_SaveThread() : NULL;
        found = end_of(view.buf, view.len, strings,
                       most > UINT32_MAX ? UINT32_MAX : (uint32_t)most);
        if (others != NULL)
            PyEval_RestoreThread(others);
    }
    PyBuffer_Release(&view);
    if (found < 0)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(found);
}

PyDoc_STRVAR(alone_doc,
"is_alone(arrays)\n--\n\n"
"Whether nothing but the list of one array refers to the array and its memory.");

static PyObject *alone(PyObject *module, PyObject *arrays)
{
    if (!PyList_CheckExact(arrays) || PyList_GET_SIZE(arrays) != 1) {
        PyErr_SetString(PyExc_TypeError, "expected a list of one array");
        return NULL;
    }
    PyObject *array = PyList_GET_ITEM(arrays, 0);
    if (Py_REFCNT(array) != 1)
        Py_RETURN_FALSE;
    PyObject *base = PyObject_GetAttrString(array, "base");
    if (base == NULL)
        return NULL;
    /* A view's base is an array with its own memory. The view and `base` refer to it. */
    bool is_alone = base == Py_None
        || (Py_TYPE(base) == Py_TYPE(array) && Py_REFCNT(base) == 2);
    Py_DECREF(base);
    return PyBool_FromLong(is_alone);
}

static PyMethodDef methods[] = {
    {"is_alone", alone, METH_O, alone_doc},
    {"end_of_strings", (PyCFunction)(void (*)(void))end, METH_FASTCALL, end_doc},
    {"pack_strings", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {"split_strings", (PyCFunction)(void (*)(void))split, METH_FASTCALL, split_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_strings", "STRING elements as bytes.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__strings(void)
{
    return PyModule_Create(&definition);
}
