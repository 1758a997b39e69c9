/* A function that stands before another one, and what several of them need. */

#ifndef RANKSCOPE_SHORTCUT_H
#define RANKSCOPE_SHORTCUT_H

#include "beat.h"

#define PARTS 6

/* Never freed while a job runs, and in no cycle that would need it. Not to be put into a class: it is not bound. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Beat *beat;
    PyObject *usual, *parts[PARTS], *names;
} Shortcut;

static void shortcut_dealloc(Shortcut *shortcut) {
    Py_XDECREF(shortcut->beat);
    Py_XDECREF(shortcut->usual);
    for (int at = 0; at < PARTS; at++) {
        Py_XDECREF(shortcut->parts[at]);
    }
    Py_XDECREF(shortcut->names);
    PyObject_Free(shortcut);
}

static PyGetSetDef shortcut_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyTypeObject ShortcutType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rankscope.probe._quick.Shortcut",
    .tp_basicsize = sizeof(Shortcut),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Shortcut, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)shortcut_dealloc,
    .tp_getset = shortcut_properties,
    .tp_dictoffset = offsetof(Shortcut, names),
};

/* Calls one of ours while an exception of the program is on its way; whatever ours raises is dropped. */
static void call_aside(PyObject *function, PyObject *first, PyObject *second) {
    PyObject *type, *value, *traceback, *result = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (first != NULL && second != NULL) {
        result = PyObject_CallFunctionObjArgs(function, first, second, NULL);
    }
    if (result == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(result);
    Py_XDECREF(first);
    Py_XDECREF(second);
    PyErr_Restore(type, value, traceback);
}

static long long attribute_number(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    long long number = value != NULL && PyLong_CheckExact(value) ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    PyErr_Clear();
    return number;
}

static PyObject *arguments(PyObject *const *args, Py_ssize_t count) {
    PyObject *given = PyTuple_New(count);
    for (Py_ssize_t at = 0; given != NULL && at < count; at++) {
        Py_INCREF(args[at]);
        PyTuple_SET_ITEM(given, at, args[at]);
    }
    return given;
}

static PyObject *make_shortcut(PyObject *beat, PyObject *usual, vectorcallfunc call) {
    Shortcut *made = PyObject_New(Shortcut, &ShortcutType);
    if (made == NULL) {
        return NULL;
    }
    made->vectorcall = call;
    made->beat = (Beat *)Py_NewRef(beat);
    made->usual = Py_NewRef(usual);
    made->names = NULL;
    for (int at = 0; at < PARTS; at++) {
        made->parts[at] = NULL;
    }
    return (PyObject *)made;
}

static PyObject *make(PyObject *args, vectorcallfunc call, Py_ssize_t parts) {
    if (PyTuple_GET_SIZE(args) != parts + 2 || !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), &BeatType)) {
        PyErr_Format(PyExc_TypeError, "takes a beat, the usual function and %zd parts", parts);
        return NULL;
    }
    PyObject *made = make_shortcut(PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1), call);
    for (Py_ssize_t at = 0; made != NULL && at < parts; at++) {
        ((Shortcut *)made)->parts[at] = Py_NewRef(PyTuple_GET_ITEM(args, at + 2));
    }
    return made;
}

#endif
